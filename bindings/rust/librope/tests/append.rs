//! Keys and values in an engine's cache: what reaches the slots has the bits of `apply`, nothing else of
//! the cache changes, and what does not fit is refused before anything is written.

mod common;

use common::cache::{Form, Places};
use common::{Number, Random};
use librope::half::{bf16, f16};
use librope::{
    Config, Context, CosSin, CosSinMut, Error, F8E4M3, KvCache, Layout, Operation, Pages, Pairing,
    Part, Pool, Positions, Result, Scale, Shape, Slots, Step, Strides, View, ViewMut,
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

fn compare<Q: Number, K: Number, V: Number>(random: &mut Random, pool: &Pool) {
    let rope = if random.below(5) == 0 { Config::nope(DIM).build().unwrap() } else { rope() };
    let packed = random.below(2) == 0; // sequences of different lengths in one batch row
    let sequences = 1 + random.below(3);
    let batch = if packed { 1 } else { sequences };
    let same = 1 + random.below(7);
    let lengths: Vec<usize> =
        (0..sequences).map(|_| if packed { 1 + random.below(9) } else { same }).collect();
    let tokens = lengths.iter().sum::<usize>() / batch;
    let cu: Vec<i32> = (0..=sequences).map(|s| lengths[..s].iter().sum::<usize>() as i32).collect();
    let (pages, page_size) = (20, 9 + random.below(8));
    let places = Places::new(random, [pages, page_size], &lengths);
    let offsets: Vec<i64> = (0..sequences).map(|_| random.below(1 << 20) as i64).collect();
    let plain = Step::new(batch, tokens, Positions::seq_offsets(&offsets));
    let plain = if packed { plain.with_cu_seqlens(&cu) } else { plain };
    let plain = if random.below(3) == 0 { plain.with_runner(pool.runner()) } else { plain };
    let plain = if random.below(4) == 0 { plain.with_operation(Operation::Inverse) } else { plain };
    let step = plain.with_slots(places.slots());

    let (q_heads, k_heads, v_heads) = (4, 1 + random.below(3), 1 + random.below(3));
    let v_dim = random.pick(&[DIM, 1, 5, 128]);
    let q: Vec<Q> = random.vec(batch * tokens * q_heads * DIM);
    let k: Vec<K> = random.vec(batch * tokens * k_heads * DIM);
    let v: Vec<V> = random.vec(batch * tokens * v_heads * v_dim);
    let k_form = Form::new(random, [pages, page_size, k_heads, DIM]);
    let v_form = Form::new(random, [pages, page_size, v_heads, v_dim]);
    let (k_before, v_before): (Vec<K>, Vec<V>) = (random.vec(k_form.len), random.vec(v_form.len));
    let (mut k_cache, mut v_cache) = (k_before.clone(), v_before.clone());

    let bhsd = |heads| View::bhsd(&k, heads);
    let want_q = rope.apply_to_vec(&plain, View::bshd(&q, q_heads), Layout::Bshd).unwrap();
    let want_k = rope.apply_to_vec(&plain, bhsd(k_heads), Layout::Bshd).unwrap();

    let mut cache = KvCache::new(pages, page_size)
        .with_k(k_form.pages(&mut k_cache))
        .with_v(v_form.pages(&mut v_cache))
        .with_v_head_dim(v_dim);
    let (mut q_got, mut k_got, mut v_got) = (q.clone(), k.clone(), vec![V::from_f64(0.0); v.len()]);
    let turned = ViewMut::bshd(&mut q_got, q_heads);
    let value = View::bshd(&v, v_heads);
    let what = format!("{:?}, {k_form:?}, {v_form:?}, {lengths:?}", places.slots());
    match random.below(3) {
        0 => rope.append(&step, turned, bhsd(k_heads), value, &mut cache),
        1 => {
            let k = ViewMut::bhsd(&mut k_got, k_heads); // in place, too
            rope.append(&step, turned, k, value, &mut cache)
        }
        _ => {
            let k = (bhsd(k_heads), ViewMut::bshd(&mut k_got, k_heads));
            rope.append(&step, turned, k, (value, ViewMut::bshd(&mut v_got, v_heads)), &mut cache)
        }
    }
    .unwrap_or_else(|error| panic!("{error}: {what}"));
    assert!(q_got == want_q, "{what}: q");
    assert!(k_cache == k_form.after(&k_before, &want_k, &places.slots), "{what}: k");
    assert!(v_cache == v_form.after(&v_before, &v, &places.slots), "{what}: v");
    let bhsd_again = rope.apply_to_vec(&plain, bhsd(k_heads), Layout::Bhsd).unwrap();
    assert!(k_got == k || k_got == want_k || k_got == bhsd_again, "{what}: k_out");
    assert!(v_got == v || v_got.iter().all(|x| x.to_f64() == 0.0), "{what}: v_out");
}

#[test]
fn slots_have_the_bits_of_apply_and_nothing_else_changes() {
    let (mut random, pool) = (Random(2026), Pool::new(2).unwrap());
    for _ in 0..150 {
        compare::<f32, f32, f32>(&mut random, &pool);
        compare::<bf16, bf16, bf16>(&mut random, &pool);
        compare::<f16, f16, f32>(&mut random, &pool);
        compare::<f32, bf16, f16>(&mut random, &pool);
    }
}

/// `[tokens, (6 + 2 + 2) * 32]`, and pages `[pages, 2, page_size, 2, 32]`.
#[test]
fn one_buffer_gives_and_one_buffer_takes() {
    let (rope, tokens, q_heads, heads) = (rope(), 5, 6, 2);
    let (pages, page_size) = (3, 4);
    let row = (q_heads + 2 * heads) * DIM;
    let qkv: Vec<f32> = Random(1).vec(tokens * row);
    let strides = Strides { token: row, head: DIM, batch: 0 };
    let part = |heads_before: usize, heads| Part::new(heads_before * DIM, heads, strides);
    let (table, starts) = ([2, 0], [1]);
    let step =
        Step::new(1, tokens, Positions::Offset(1)).with_slots(Slots::paged(&table, 2, &starts));

    let half = page_size * heads * DIM;
    let place = Strides { batch: 2 * half, token: heads * DIM, head: DIM };
    let (k, v) = (Part::new(0, heads, place), Part::new(half, heads, place));
    let (mut got, mut data) = (qkv.clone(), vec![0.0f32; pages * 2 * half]);
    let mut cache = KvCache::packed(pages, page_size, &mut data, k, v).unwrap();
    let parts = [part(0, q_heads), part(q_heads, heads), part(q_heads + heads, heads)];
    let [of_q, of_k, of_v] = parts;
    rope.append_packed(&step, &mut got, of_q, of_k, of_v, &mut cache).unwrap();

    let mut want = qkv.clone();
    let plain = Step::new(1, tokens, Positions::Offset(1));
    rope.apply_packed(&plain, &mut want, of_q, of_k).unwrap();
    let mut want_data = vec![0.0f32; data.len()];
    for (token, row) in want.chunks(row).enumerate() {
        let n = starts[0] as usize + token;
        let slot = table[n / page_size] as usize * 2 * half + n % page_size * heads * DIM;
        want_data[slot..][..heads * DIM].copy_from_slice(&row[q_heads * DIM..][..heads * DIM]);
        let v = &row[(q_heads + heads) * DIM..];
        want_data[slot + half..][..heads * DIM].copy_from_slice(v);
    }
    assert!(data == want_data);
    for (got, (want, before)) in got.chunks(row).zip(want.chunks(row).zip(qkv.chunks(row))) {
        assert!(got[..q_heads * DIM] == want[..q_heads * DIM], "q turns in place");
        assert!(got[q_heads * DIM..] == before[q_heads * DIM..], "k and v are only read");
    }

    // Parts that overlap, of the buffer and of the cache.
    let mut cache = KvCache::packed(pages, page_size, &mut data, k, v).unwrap();
    let q_and_k = part(q_heads - 1, heads);
    assert!(
        refused(rope.append_packed(&step, &mut got, of_q, q_and_k, of_v, &mut cache))
            .contains("overlap")
    );
    let mut cache = KvCache::packed(pages, page_size, &mut data, k, k).unwrap();
    assert!(
        refused(rope.append_packed(&step, &mut got, of_q, of_k, of_v, &mut cache))
            .contains("overlap")
    );
    assert!(data == want_data);
    let beyond = Part::new(data.len() + 1, heads, place);
    assert!(refused(KvCache::packed(pages, page_size, &mut data, k, beyond)).contains("begins at"));
}

/// DeepSeek: a row of 40 latent channels and the rotated key for each token.
#[test]
fn rows_of_latent_and_key() {
    let (rope, tokens, latent) = (rope(), 3, 40);
    let row = latent + SPAN;
    let (k, v): (Vec<bf16>, Vec<bf16>) =
        (Random(5).vec(tokens * SPAN), Random(6).vec(tokens * latent));
    let mut data = vec![bf16::ZERO; 8 * row];
    let strides = Strides { batch: 4 * row, token: row, head: row };
    let (of_k, of_v) = (Part::new(latent, 1, strides).span(), Part::new(0, 1, strides));
    let mut cache = KvCache::packed(2, 4, &mut data, of_k, of_v).unwrap().with_v_head_dim(latent);
    let plain = Step::new(1, tokens, Positions::Offset(77));
    let step = plain.with_slots(Slots::mapped(&[7, 0, 5]));
    rope.append(&step, (), View::bshd(&k, 1).span(), View::bshd(&v, 1), &mut cache).unwrap();
    let turned = rope.apply_to_vec(&plain, View::bshd(&k, 1).span(), Layout::Bshd).unwrap();
    let mut want = vec![bf16::ZERO; 8 * row];
    for (token, slot) in [7, 0, 5].into_iter().enumerate() {
        want[slot * row..][..latent].copy_from_slice(&v[token * latent..][..latent]);
        want[slot * row + latent..][..SPAN].copy_from_slice(&turned[token * SPAN..][..SPAN]);
    }
    assert!(data == want);
}

#[test]
fn rows_of_cos_and_sin_store_as_positions_do() {
    let rope = rope();
    let step = Step::new(1, 4, Positions::Offset(9));
    let mut rows = vec![0.0f32; 4 * SPAN];
    rope.fill_cos_sin(&step, CosSinMut::packed(&mut rows)).unwrap();
    let k: Vec<f32> = Random(3).vec(4 * DIM);
    let slots = Slots::mapped(&[4i64, 3, 2, -1]);
    let steps =
        [step.with_slots(slots), Step::with_rows(1, 4, CosSin::packed(&rows)).with_slots(slots)];
    let [by_positions, by_rows] = steps.map(|step| {
        let mut cached = vec![0.0f32; 5 * DIM];
        let mut cache = KvCache::new(1, 5).with_k(Pages::hnd(&mut cached, 1));
        rope.append(&step, (), View::bshd(&k, 1), (), &mut cache).unwrap();
        cached
    });
    assert!(by_positions == by_rows && by_rows[DIM] == 0.0 && by_rows[2 * DIM] != 0.0);
}

/// Every call below would read or write outside of a slice, or what is shared, if it were made.
#[test]
fn what_does_not_fit_is_refused() {
    let rope = rope();
    let (pages, page_size, heads) = (3, 4, 2);
    let k: Vec<f32> = Random(7).vec(2 * heads * DIM);
    let before: Vec<f32> = Random(8).vec(pages * page_size * heads * DIM + 1);
    let (mut keys, mut values) = (before.clone(), before.clone());
    let exact = before.len() - 1;
    let step = |slots| Step::new(2, 1, Positions::Offset(0)).with_slots(slots);
    let mut message = |slots, len: usize, pages, page_size| {
        let mut cache = KvCache::new(pages, page_size)
            .with_k(Pages::nhd(&mut keys[..len], heads))
            .with_v(Pages::hnd(&mut values[..exact], heads));
        let (k, v) = (View::bshd(&k, heads), View::bshd(&k, heads));
        refused(rope.append(&step(slots), (), k, v, &mut cache))
    };
    let mapped = Slots::mapped(&[0, 1]);
    for (slots, words) in [
        (Slots::mapped(&[0, 12]), "Context::append: slots[1] (12) must be below 12"),
        (Slots::mapped(&[1i64 << 40, 0]), "slots[0]"),
        (
            Slots::mapped(&[0i32; 0]),
            "the array of slots (padding has -1) has 0 entries, and the call needs 2",
        ),
        (Slots::mapped(&[0i64]), "has 1 entry, and the call needs 2"),
        (Slots::paged(&[0, 3], 1, &[0, 0]), "page_table[1] (3)"),
        (Slots::paged(&[0, 1], 1, &[0, 4]), "sequence 1 has 1 pages"),
        (Slots::paged(&[0, 1], 1, &[0, -1]), "starts[1] (-1)"),
        (Slots::paged(&[0, 1, 2], 1, &[0, 0]), "the page table has 3 entries"),
        (Slots::paged(&[0, 1], usize::MAX, &[0, 0]), "beyond the address space"),
        (Slots::paged(&[], 0, &[0, 0]), "width"),
        (Slots::paged(&[0, 1], 1, &[0]), "the array of starts has 1"),
        (Slots::ragged(&[0, 1], &[0, 1], &[0, 0]), "page_starts has 2"),
        (Slots::ragged(&[0, 1], &[0, 1, 3], &[0, 0]), "page_starts[2] (3)"),
        (Slots::ragged(&[0, 1], &[0, 1 << 30, 2], &[i32::MAX, 0]), "page_starts[1]"),
        (Slots::ragged(&[0, 1], &[-1, 1, 2], &[0, 0]), "page_starts[0] (-1)"),
        (Slots::ragged(&[0, 1], &[1, 0, 2], &[0, 0]), "never decreasing"),
        (Slots::linear(&[0, 4]), "page size (4)"),
        (Slots::linear(&[0, 0, 0]), "has 3 entries"),
    ] {
        let got = message(slots, exact, pages, page_size);
        assert!(got.contains(words), "{slots:?}: {got}");
    }
    for (len, pages, page_size, words) in [
        (
            exact - 1,
            pages,
            page_size,
            "Context::append: the cache's k with pages 3, page size 4, heads 2, channels 32 and \
             layout Nhd needs 768 elements, and its slice has 767",
        ),
        (exact + 1, pages, page_size, "needs 768 elements, and its slice has 769"),
        (exact, pages + 1, page_size, "needs 1024 elements, and its slice has 768"),
        (exact, pages, page_size - 1, "needs 576 elements, and its slice has 768"),
        (exact, 0, page_size, "the cache's pages (0) is required, and must be positive"),
        (exact, pages, 0, "the cache's page size (0) is required, and must be from 1 to"),
        (exact, usize::MAX, 2, "beyond the address space"),
        (exact, pages, usize::MAX, "the cache's page size (18446744073709551615) must not be"),
        (0, 0, page_size, "the cache's pages (0)"),
    ] {
        let got = message(mapped, len, pages, page_size);
        assert!(got.contains(words), "{len}, {pages}, {page_size}: {got}");
    }

    let try_cache = |cache: &mut KvCache<'_>, words: &str| {
        let (k, v) = (View::bshd(&k, heads), View::bshd(&k, heads));
        let got = refused(rope.append(&step(mapped), (), k, v, cache));
        assert!(got.contains(words), "{got}");
    };
    // Without memory for k the library would turn it where it lies, and it is shared.
    let mut only_v = KvCache::new(3, 4).with_v(Pages::nhd(&mut values[..exact], heads));
    try_cache(&mut only_v, "k has no place to go");
    let mut span = KvCache::new(3, 4).with_k(Pages::nhd(&mut keys[..exact], heads));
    span = span.with_v(Pages::nhd(&mut values[..exact], heads).span());
    try_cache(&mut span, "no span");
    for dim in [31, 33, 1 << 40] {
        let v = Pages::nhd(&mut values[..exact], heads);
        let k = Pages::nhd(&mut keys[..exact], heads);
        try_cache(&mut KvCache::new(3, 4).with_k(k).with_v(v).with_v_head_dim(dim), "v");
    }
    for strides in [
        Strides { batch: 4 * 64, token: 64, head: 33 },
        Strides { batch: usize::MAX, token: 64, head: 32 },
        Strides { batch: 4 * 65, token: 65, head: 32 },
    ] {
        let k = Pages::strided(&mut keys[..exact], heads, strides);
        let v = Pages::nhd(&mut values[..exact], heads);
        try_cache(&mut KvCache::new(3, 4).with_k(k).with_v(v), "");
    }
    assert!(keys == before && values == before, "a refused call has written");
}

/// Codes of what `apply` gives in f32, by the formula of the header.
#[test]
fn codes_stand_for_the_results_in_f32() {
    let rope = rope();
    let step = Step::new(1, 1, Positions::Offset(3));
    let k: Vec<f32> = (0..2 * DIM).map(|i| (i as f32 - 20.3) * 0.37).collect();
    let mut turned = k.clone();
    rope.apply(&step, (), ViewMut::bshd(&mut turned, 2)).unwrap();
    let step = step.with_slots(Slots::mapped(&[1]));
    let code = |x: &f32, scale: f32| (x * (1.0 / scale)).round_ties_even() as i8; // saturates

    let mut codes = vec![99i8; 4 * DIM];
    let pages = Pages::nhd(&mut codes, 2).with_scale(Scale::given(0.25));
    let mut cache = KvCache::new(2, 1).with_k(pages);
    rope.append(&step, (), View::bshd(&k, 2), (), &mut cache).unwrap();
    assert_eq!(codes[..2 * DIM], [99; 2 * DIM]);
    assert!(codes[2 * DIM..].iter().zip(&turned).all(|(c, x)| *c == code(x, 0.25)));

    let (mut codes, mut scales) = (vec![99i8; 4 * DIM], vec![-1f32; 8]);
    let computed = Scale::computed(&mut scales).with_group(16);
    let mut cache = KvCache::new(2, 1).with_k(Pages::nhd(&mut codes, 2).with_scale(computed));
    rope.append(&step, (), View::bshd(&k, 2), (), &mut cache).unwrap();
    assert_eq!(scales[..4], [-1.0; 4]);
    for (g, group) in turned.chunks(16).enumerate() {
        let largest = group.iter().fold(0f32, |most, x| most.max(x.abs()));
        assert_eq!(scales[4 + g], largest / 127.0);
        let stored = &codes[2 * DIM + 16 * g..][..16];
        assert!(stored.iter().zip(group).all(|(c, x)| *c == code(x, scales[4 + g])));
    }

    // An e4m3 of 1 is 0x38; of NaN and beyond 448 times the scale as the header says.
    let (mut codes, x) = (vec![F8E4M3(0); DIM], [f32::NAN, 1e9, 1.0, -1.0].repeat(DIM / 4));
    let nope = Config::nope(DIM).build().unwrap();
    let mut cache =
        KvCache::new(1, 1).with_v(Pages::nhd(&mut codes, 1).with_scale(Scale::given(1.0)));
    let first = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::mapped(&[0]));
    let mut q = vec![0f32; DIM];
    nope.append(&first, ViewMut::bshd(&mut q, 1), (), View::bshd(&x, 1), &mut cache).unwrap();
    assert_eq!(codes[..4], [0x7f, 0x7e, 0x38, 0xb8].map(F8E4M3));

    // Arrays of scales have their size, and codes have scales.
    let mut codes = vec![99i8; 4 * DIM];
    let (mut few, before) = ([0f32; 7], codes.clone());
    let pages = Pages::nhd(&mut codes, 2).with_scale(Scale::computed(&mut few).with_group(16));
    let refusal =
        rope.append(&step, (), View::bshd(&k, 2), (), &mut KvCache::new(2, 1).with_k(pages));
    assert!(refused(refusal).contains(
        "the scales of the cache's k are [pages, page size, heads, groups] = [2, 1, 2, 2] and need 8 \
         elements, and their slice has 7"
    ));
    let pages = Pages::nhd(&mut codes, 2).with_scale(Scale::computed(&mut few).with_group(7));
    let refusal =
        rope.append(&step, (), View::bshd(&k, 2), (), &mut KvCache::new(2, 1).with_k(pages));
    assert!(refused(refusal).contains("the scales of the cache's k (7) must divide 32"));
    let mut bare = KvCache::new(2, 1).with_k(Pages::nhd(&mut codes, 2));
    let refusal = rope.append(&step, (), View::bshd(&k, 2), (), &mut bare);
    assert!(refused(refusal).contains("the scale of the cache's k (None) is required"));
    assert_eq!(codes, before);
    let mut numbers = vec![9.0f32; 4 * DIM];
    let scaled = Pages::nhd(&mut numbers, 2).with_scale(Scale::given(0.02));
    let refusal =
        rope.append(&step, (), View::bshd(&k, 2), (), &mut KvCache::new(2, 1).with_k(scaled));
    assert_eq!(
        refused(refusal),
        "Context::append: the scale of the cache's k must be None with dtype (DType::F32), which is \
         none of 8 bits"
    );
    assert!(numbers.iter().all(|&x| x == 9.0));
}

#[test]
fn slots_are_for_append_alone() {
    let rope = rope();
    let mut k = vec![1.0f32; DIM];
    let plain = Step::new(1, 1, Positions::Offset(0));
    let step = plain.with_slots(Slots::mapped(&[0]));
    assert!(refused(rope.apply(&step, (), ViewMut::bshd(&mut k, 1))).contains("other calls"));
    assert!(refused(rope.prepare(&step, Shape::<f32>::bshd(1), ())).contains("other calls"));
    let mut cached = vec![0.0f32; DIM];
    let mut cache = KvCache::new(1, 1).with_k(Pages::nhd(&mut cached, 1));
    let without = rope.append(&plain, (), View::bshd(&k, 1), (), &mut cache);
    assert!(refused(without).contains("Step::with_slots"));
    let gradient = step.with_operation(Operation::Backward);
    let refusal = rope.append(&gradient, (), View::bshd(&k, 1), (), &mut cache);
    assert!(matches!(refusal, Err(Error::Unsupported(_))));
    let other = rope.append(&step, (), View::bshd(&[1.0f32; 2 * DIM], 2), (), &mut cache);
    assert!(matches!(other, Err(Error::InvalidArgument(_))));
    assert!(k == [1.0; DIM] && cached == [0.0; DIM]);
    // Nothing to store is no error.
    let nothing = Step::new(1, 0, Positions::Offset(0)).with_slots(Slots::mapped(&[0]));
    let mut cache = KvCache::new(1, 1).with_k(Pages::nhd(&mut cached, 1));
    rope.append(&nothing, (), View::<f32>::bshd(&[], 1), (), &mut cache).unwrap();
}
