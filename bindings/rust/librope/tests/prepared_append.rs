//! Prepared appends: the bits of `append` in tensors and in the cache, and slices that do not fit are refused
//! before anything is written.

mod common;

use std::thread;

use common::cache::{Form, Places};
use common::{Number, Random};
use librope::half::{bf16, f16};
use librope::{
    CacheShape, Config, Context, Error, KvCache, Operation, Pages, Pairing, Part, Pool, Positions,
    Result, Shape, Slots, Step, Strides, View, ViewMut,
};

const DIM: usize = 32;
const SPAN: usize = 16;

fn rope() -> Context {
    Config::new(DIM, 10000.0, Pairing::Halves).with_rotary_dim(SPAN).build().unwrap()
}

/// The message of a refusal, which is of this kind.
fn refused<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::InvalidArgument(message)) => message,
        other => panic!("{other:?}"),
    }
}

/// Two layers of one step, k and v only read or with outputs.
fn compare<Q: Number, K: Number, V: Number>(random: &mut Random, pool: &Pool) {
    let rope = if random.below(5) == 0 { Config::nope(DIM).build().unwrap() } else { rope() };
    let (batch, tokens) = (1 + random.below(3), 1 + random.below(7));
    let (pages, page_size) = (20, 9 + random.below(8));
    let places = Places::new(random, [pages, page_size], &vec![tokens; batch]);
    let offsets: Vec<i64> = (0..batch).map(|_| random.below(1 << 20) as i64).collect();
    let step =
        Step::new(batch, tokens, Positions::seq_offsets(&offsets)).with_slots(places.slots());
    let step = if random.below(3) == 0 { step.with_runner(pool.runner()) } else { step };
    let step = if random.below(4) == 0 { step.with_operation(Operation::Inverse) } else { step };
    let (q_heads, k_heads, v_heads) = (4, 1 + random.below(3), 1 + random.below(3));
    let v_dim = random.pick(&[DIM, 1, 5, 128]);
    let k_form = Form::new(random, [pages, page_size, k_heads, DIM]);
    let v_form = Form::new(random, [pages, page_size, v_heads, v_dim]);

    let (of_q, of_k, of_v) =
        (Shape::<Q>::bshd(q_heads), Shape::<K>::bhsd(k_heads), Shape::<V>::sbhd(v_heads));
    let (k_out, v_out) = (Shape::<K>::bshd(k_heads), Shape::<V>::bhsd(v_heads));
    let memory = CacheShape::new(pages, page_size, k_form.shape::<K>(), v_form.shape::<V>());
    let memory = memory.with_v_head_dim(v_dim);
    let reading = rope.prepare_append(&step, of_q, of_k, of_v, memory).unwrap();
    let writing = rope.prepare_append(&step, of_q, (of_k, k_out), (of_v, v_out), memory).unwrap();
    for _layer in 0..2 {
        let q: Vec<Q> = random.vec(batch * tokens * q_heads * DIM);
        let k: Vec<K> = random.vec(batch * tokens * k_heads * DIM);
        let v: Vec<V> = random.vec(batch * tokens * v_heads * v_dim);
        let (keys, values): (Vec<K>, Vec<V>) = (random.vec(k_form.len), random.vec(v_form.len));
        let what = format!("{:?}, {k_form:?}, {v_form:?}", places.slots());

        let (mut want_q, mut want_k, mut want_v) = (q.clone(), k.clone(), v.clone());
        let (mut want_keys, mut want_values) = (keys.clone(), values.clone());
        let mut cache = KvCache::new(pages, page_size)
            .with_k(k_form.pages(&mut want_keys))
            .with_v(v_form.pages(&mut want_values))
            .with_v_head_dim(v_dim);
        let to_k = (View::bhsd(&k, k_heads), ViewMut::bshd(&mut want_k, k_heads));
        let to_v = (View::sbhd(&v, v_heads), ViewMut::bhsd(&mut want_v, v_heads));
        rope.append(&step, ViewMut::bshd(&mut want_q, q_heads), to_k, to_v, &mut cache).unwrap();

        let (mut got_q, mut got_keys, mut got_values) = (q.clone(), keys.clone(), values.clone());
        reading.apply(&mut got_q, &k, &v, (&mut got_keys, &mut got_values)).unwrap();
        assert!(got_q == want_q, "{what}: q");
        assert!(got_keys == want_keys && got_values == want_values, "{what}: the cache");

        let (mut got_q, mut got_keys, mut got_values) = (q, keys.clone(), values);
        let (mut got_k, mut got_v) = (k.clone(), v.clone());
        let (to_k, to_v) = ((&k[..], &mut got_k[..]), (&v[..], &mut got_v[..]));
        writing.apply(&mut got_q, to_k, to_v, (&mut got_keys, &mut got_values)).unwrap();
        assert!(got_q == want_q && got_k == want_k && got_v == want_v, "{what}: outputs");
        assert!(got_keys == want_keys && got_values == want_values, "{what}: the cache");
        let nowhere = places.slots.iter().all(Option::is_none);
        assert!(nowhere || got_keys != keys, "{what}: nothing was stored");
    }
}

#[test]
fn layers_get_the_bits_of_append() {
    let (mut random, pool) = (Random(2027), Pool::new(2).unwrap());
    for _ in 0..100 {
        compare::<f32, f32, f32>(&mut random, &pool);
        compare::<bf16, bf16, bf16>(&mut random, &pool);
        compare::<f32, bf16, f16>(&mut random, &pool);
    }
}

/// Rows of latent and key in one buffer, and q, k and v in another.
#[test]
fn one_buffer_gives_and_one_buffer_takes() {
    let (rope, tokens, latent) = (rope(), 3, 40);
    let (row, place) = (2 * SPAN + latent, latent + SPAN);
    let tensor = Strides { token: row, head: SPAN, batch: 0 };
    let page = Strides { batch: 4 * place, token: place, head: place };
    let (of_k, of_v) = (Part::new(latent, 1, page).span(), Part::new(0, 1, page));
    let step = Step::new(1, tokens, Positions::Offset(77)).with_slots(Slots::mapped(&[7, 0, 5]));
    let span = Shape::<bf16>::strided(1, tensor).span();
    let value = Shape::<bf16>::strided(1, tensor);
    let memory = CacheShape::packed(2, 4, of_k, of_v).with_v_head_dim(latent);
    let call = rope.prepare_append(&step, span, span, value, memory).unwrap();
    for layer in 0..2 {
        let rows: Vec<bf16> = Random(11 + layer).vec(tokens * row);
        let (mut got, mut want) = (rows.clone(), rows);
        let (mut pages, mut want_pages) = (vec![bf16::ONE; 8 * place], vec![bf16::ONE; 8 * place]);
        let cache = KvCache::packed(2, 4, &mut want_pages, of_k, of_v).unwrap();
        let part = |begin| Part::new(begin, 1, tensor);
        let (q, k, v) = (part(0).span(), part(SPAN).span(), part(2 * SPAN));
        rope.append_packed(&step, &mut want, q, k, v, &mut cache.with_v_head_dim(latent)).unwrap();
        call.apply_packed(&mut got, [0, SPAN, 2 * SPAN], &mut pages).unwrap();
        assert!(got == want && pages == want_pages && pages[0] != bf16::ONE);

        for (begins, len, words) in [
            ([0, 1, 2 * SPAN], 8 * place, "overlaps"),
            ([0, usize::MAX, 2 * SPAN], 8 * place, "k needs 160 elements from"),
            (
                [0, SPAN, 2 * SPAN + 1],
                8 * place,
                "v needs 184 elements from 33 on, and the buffer has 216",
            ),
            ([0, SPAN, 2 * SPAN], 8 * place - 1, "the cache's k needs 408 elements from 40 on"),
            ([0, SPAN, 2 * SPAN], 8, "the cache's k needs"),
        ] {
            let message = refused(call.apply_packed(&mut got, begins, &mut pages[..len]));
            assert!(message.contains(words), "{message}");
        }
        assert!(got == want && pages == want_pages, "a refused call has written");
    }
    let both = CacheShape::packed(2, 4, of_k, Part::new(1, 1, page)).with_v_head_dim(latent);
    let call = rope.prepare_append(&step, span, span, value, both).unwrap();
    let (mut rows, mut pages) = (vec![bf16::ONE; tokens * row], vec![bf16::ONE; 8 * place + 1]);
    let message = refused(call.apply_packed(&mut rows, [0, SPAN, 2 * SPAN], &mut pages));
    assert!(message.contains("overlaps") && pages.iter().all(|&x| x == bf16::ONE), "{message}");
}

#[test]
fn slices_of_other_lengths_are_refused() {
    let rope = rope();
    let step = Step::new(1, 2, Positions::Offset(3)).with_slots(Slots::mapped(&[11, 0]));
    let heads = 2;
    let loose = Shape::<f32>::strided(heads, Strides { batch: 260, token: 65, head: 32 });
    let memory = CacheShape::new(3, 4, Shape::<f32>::nhd(heads), loose);
    let tensor = Shape::<f32>::bshd(heads);
    let call = rope.prepare_append(&step, tensor, tensor, (tensor, tensor), memory).unwrap();
    let (n, exact, reach) = (2 * heads * DIM, 3 * 4 * heads * DIM, 2 * 260 + 3 * 65 + 64);
    let apply = |lengths: [usize; 6]| {
        let [mut q, k, v, mut v_out, mut keys, mut values] = lengths.map(|len| vec![1.0f32; len]);
        let memory = (&mut keys[..], &mut values[..]);
        let result = call.apply(&mut q, &k, (&v, &mut v_out), memory);
        let written =
            [&q, &keys].iter().any(|slice| slice.iter().any(|&x| x.to_bits() != 1.0f32.to_bits()));
        assert_eq!(written, result.is_ok());
        result
    };
    let good = [n, n, n, n, exact, reach];
    apply(good).unwrap();
    apply([n, n, n, n, exact, reach + 9]).unwrap();
    for (at, len, words) in [
        (0, n - 1, "q has 127 elements, and the prepared call needs 128"),
        (1, 0, "k has 0 elements"),
        (2, n + 1, "v has 129 elements"),
        (3, 0, "v_out has 0 elements"),
        (4, exact - 1, "the cache's k has 767 elements, and the prepared call needs 768"),
        (4, exact + 1, "the cache's k has 769 elements"),
        (4, 0, "the cache's k has 0 elements"),
        (5, reach - 1, "the cache's v has 778 elements, and the prepared call needs 779 or more"),
    ] {
        let mut lengths = good;
        lengths[at] = len;
        assert!(refused(apply(lengths)).contains(words), "{words}");
    }
}

#[test]
fn what_append_refuses_cannot_be_prepared() {
    let rope = rope();
    let plain = Step::new(2, 1, Positions::Offset(0));
    let step = plain.with_slots(Slots::mapped(&[0, 1]));
    let (tensor, page) = (Shape::<f32>::bshd(2), Shape::<f32>::nhd(2));
    let cache = CacheShape::new(3, 4, page, page);
    let says = |message: String, words: &str| assert!(message.contains(words), "{message}");
    let try_step =
        |step: &Step<'_>| refused(rope.prepare_append(step, tensor, tensor, tensor, cache));
    says(try_step(&plain), "Step::with_slots");
    let source = step.with_source(Slots::linear(&[0, 0]));
    let refusal = rope.prepare_append(&source, tensor, tensor, tensor, cache);
    let message = match refusal {
        Err(Error::Unsupported(message)) => message, // as C says
        other => panic!("{other:?}"),
    };
    says(message, "Context::prepare_append: moves are not prepared");
    says(try_step(&plain.with_slots(Slots::mapped(&[0, 12]))), "slots[1] (12)");
    says(try_step(&plain.with_slots(Slots::paged(&[0, 3], 1, &[0, 0]))), "page_table[1] (3)");
    says(try_step(&plain.with_slots(Slots::linear(&[0]))), "the array of starts has 1");
    let backward = step.with_operation(Operation::Backward);
    let refusal = rope.prepare_append(&backward, tensor, tensor, tensor, cache);
    assert!(matches!(refusal, Err(Error::Unsupported(_))));

    let try_pages = |pages, page_size, k, v| {
        let cache = CacheShape::new(pages, page_size, k, v);
        refused(rope.prepare_append(&step, tensor, tensor, tensor, cache))
    };
    says(
        try_pages(usize::MAX, 4, page, page),
        "the cache's k with pages 18446744073709551615, page size 4",
    );
    says(try_pages(0, 4, page, page), "pages (0)");
    says(try_pages(3, 1 << 40, page, page), "the cache's page size");
    says(try_pages(3, 4, Shape::nhd(3), page), "the heads of the cache's k (3)");
    says(try_pages(3, 4, Shape::bshd(2), page), "the layout of the cache's k (Layout::Bshd)");
    says(try_pages(3, 4, page, page.span()), "no span");
    let thin = Shape::strided(2, Strides { batch: 64, token: 64, head: 32 });
    says(try_pages(3, 4, thin, page), "overlap");
    let wide = cache.with_v_head_dim(1 << 40);
    says(refused(rope.prepare_append(&step, tensor, tensor, tensor, wide)), "v");
    // Without memory for k the library would turn it where it lies, and it is only lent.
    let only_v = CacheShape::new(3, 4, (), page);
    let message = refused(rope.prepare_append(&step, tensor, tensor, tensor, only_v));
    says(message, "k has no place to go");
    let only_k = CacheShape::new(3, 4, page, ());
    says(
        refused(rope.prepare_append(&step, tensor, tensor, tensor, only_k)),
        "v is set, but neither",
    );
    let nothing = CacheShape::new(3, 4, (), ());
    says(refused(rope.prepare_append(&step, tensor, (), (), nothing)), "cache");
}

/// Calls without k, without v, and without tokens.
#[test]
fn what_is_absent_is_left_alone() {
    let rope = rope();
    let step = Step::new(1, 1, Positions::Offset(3)).with_slots(Slots::mapped(&[1]));
    let (tensor, page) = (Shape::<f32>::bshd(1), Shape::<f32>::hnd(1));
    let x: Vec<f32> = Random(3).vec(DIM);
    let (mut want, mut keys, mut values) =
        (vec![0.0; 2 * DIM], vec![0.0; 2 * DIM], vec![0.0; 2 * DIM]);
    let mut cache = KvCache::new(1, 2).with_k(Pages::hnd(&mut want, 1));
    rope.append(&step, (), View::bshd(&x, 1), (), &mut cache).unwrap();
    let only_k = CacheShape::new(1, 2, page, ());
    let call = rope.prepare_append(&step, (), tensor, (), only_k).unwrap();
    call.apply((), &x, (), (&mut keys, ())).unwrap();
    assert!(keys == want && keys[DIM..] != x && keys[..DIM] == [0.0; DIM]);
    let only_v = CacheShape::new(1, 2, (), page);
    let call = rope.prepare_append(&step, tensor, (), tensor, only_v).unwrap();
    let mut q = x.clone();
    call.apply(&mut q, (), &x, ((), &mut values)).unwrap();
    assert!(q == want[DIM..] && values[DIM..] == x && values[..DIM] == [0.0; DIM]);
    for [batch, tokens] in [[0, 1], [1, 0]] {
        let starts = [0i32; 1];
        let step = Step::new(batch, tokens, Positions::Offset(3))
            .with_slots(Slots::linear(&starts[..batch]));
        let call = rope.prepare_append(&step, (), tensor, (), only_k).unwrap();
        call.apply((), &[], (), (&mut keys, ())).unwrap();
        assert!(refused(call.apply((), &[], (), (&mut [], ()))).contains("the cache's k has 0"));
        assert!(keys == want);
    }
}

#[test]
fn threads_share_one_call() {
    let rope = rope();
    let step = Step::new(1, 2, Positions::Offset(1000)).with_slots(Slots::mapped(&[3, 6]));
    let (tensor, page) = (Shape::<f32>::bshd(1), Shape::<f32>::nhd(1));
    let cache = CacheShape::new(2, 4, page, page);
    let call = rope.prepare_append(&step, tensor, tensor, tensor, cache).unwrap();
    thread::scope(|scope| {
        for seed in 1..5 {
            let (rope, step, call) = (&rope, &step, &call);
            scope.spawn(move || {
                let mut random = Random(seed);
                for _layer in 0..16 {
                    let x: Vec<f32> = random.vec(2 * DIM);
                    let (mut q, mut want_q) = (x.clone(), x.clone());
                    let mut memory = [(); 4].map(|()| vec![0.0f32; 8 * DIM]);
                    let [keys, values, want_keys, want_values] = &mut memory;
                    let mut cache = KvCache::new(2, 4)
                        .with_k(Pages::nhd(want_keys, 1))
                        .with_v(Pages::nhd(want_values, 1));
                    let (k, v) = (View::bshd(&x, 1), View::bshd(&x, 1));
                    rope.append(step, ViewMut::bshd(&mut want_q, 1), k, v, &mut cache).unwrap();
                    call.apply(&mut q, &x, &x, (keys, values)).unwrap();
                    assert!(q == want_q && keys == want_keys && values == want_values);
                }
            });
        }
    });
}
