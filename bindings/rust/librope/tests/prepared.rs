//! Prepared calls: the bits of the plain one for every element type, layout and way to give angles, and
//! slices that do not fit are refused before anything is written.

mod common;

use std::panic::{self, AssertUnwindSafe};
use std::thread;

use common::{Number, Random};
use librope::half::{bf16, f16};
use librope::{
    Angle, Config, Context, CosSin, CosSinMut, Error, Layout, Operand, Operation, Pairing,
    ParallelFor, Part, Pool, Positions, Result, Runner, Shape, Step, Strides, View, ViewMut,
};

const DIM: usize = 32;
const SPAN: usize = 16;

fn rope() -> Context {
    Config::new(64, 10000.0, Pairing::Halves).build().unwrap()
}

/// The message of a refusal, which is of this kind.
fn refused<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::InvalidArgument(message)) => message,
        other => panic!("{other:?}"),
    }
}

/// A tensor of the random calls below.
#[derive(Clone, Copy, Debug)]
struct Form {
    layout: Layout,
    heads: usize,
    span: bool,
    len: usize,
}

impl Form {
    fn new(random: &mut Random, [batch, tokens, heads]: [usize; 3], span: bool) -> Form {
        let dim = if span { SPAN } else { DIM };
        let layout = match random.below(4) {
            0 => Layout::Bshd,
            1 => Layout::Bhsd,
            2 => Layout::Sbhd,
            _ => {
                let head = dim + random.below(5);
                let token = heads * head + random.below(5);
                Layout::Strided(Strides { batch: tokens * token + 3, token, head })
            }
        };
        let len = match layout {
            Layout::Strided(s) => batch * s.batch + random.below(9),
            _ => batch * tokens * heads * dim,
        };
        Form { layout, heads, span, len }
    }

    fn shape<T: Number>(self) -> Shape<T> {
        let shape = Shape::new(self.layout, self.heads);
        if self.span { shape.span() } else { shape }
    }

    fn view<T: Number>(self, data: &[T]) -> View<'_, T> {
        let view = View::new(data, self.layout, self.heads);
        if self.span { view.span() } else { view }
    }

    fn view_mut<T: Number>(self, data: &mut [T]) -> ViewMut<'_, T> {
        let view = ViewMut::new(data, self.layout, self.heads);
        if self.span { view.span() } else { view }
    }
}

/// Two layers of one call, in place, out of place, and with one tensor.
fn compare<Q: Number, K: Number>(
    context: &Context,
    random: &mut Random,
    step: &Step<'_>,
    sizes: [usize; 2],
) {
    let mut form = |heads| {
        let span = random.below(4) == 0;
        Form::new(random, [sizes[0], sizes[1], heads], span)
    };
    let (q, q_out, k, k_out) = (form(3), form(3), form(1), form(1));
    let what = format!("{step:?} {q:?} {q_out:?} {k:?} {k_out:?}");
    let in_place = context.prepare(step, q.shape::<Q>(), k.shape::<K>()).expect(&what);
    let both = (k.shape::<K>(), k_out.shape::<K>());
    let out_of_place =
        context.prepare(step, (q.shape::<Q>(), q_out.shape::<Q>()), both).expect(&what);
    let alone = context.prepare(step, (), k.shape::<K>()).expect(&what);
    for _layer in 0..2 {
        let (x, y): (Vec<Q>, Vec<K>) = (random.vec(q.len), random.vec(k.len));
        let call = |q: Operand<'_>, k: Operand<'_>| context.apply(step, q, k).expect(&what);

        let (mut want_x, mut want_y) = (x.clone(), y.clone());
        call(q.view_mut(&mut want_x).into(), k.view_mut(&mut want_y).into());
        let (mut got_x, mut got_y) = (x.clone(), y.clone());
        in_place.apply(&mut got_x, &mut got_y).expect(&what);
        assert!(got_x == want_x && got_y == want_y && got_x != x && got_y != y, "{what}");
        let mut got_y = y.clone();
        alone.apply((), &mut got_y).expect(&what);
        assert!(got_y == want_y, "{what}");

        let (old_x, old_y): (Vec<Q>, Vec<K>) = (random.vec(q_out.len), random.vec(k_out.len));
        let (mut want_x, mut want_y) = (old_x.clone(), old_y.clone());
        let to_x = (q.view(&x), q_out.view_mut(&mut want_x));
        call(to_x.into(), (k.view(&y), k_out.view_mut(&mut want_y)).into());
        let (mut got_x, mut got_y) = (old_x, old_y);
        out_of_place.apply((&x, &mut got_x), (&y, &mut got_y)).expect(&what);
        assert!(got_x == want_x && got_y == want_y, "{what}");
    }
}

fn every_dtype(context: &Context, random: &mut Random, step: &Step<'_>, sizes: [usize; 2]) {
    compare::<f32, f32>(context, random, step, sizes);
    compare::<f16, f16>(context, random, step, sizes);
    compare::<bf16, bf16>(context, random, step, sizes);
    compare::<bf16, f32>(context, random, step, sizes);
}

#[test]
fn layers_get_the_bits_of_the_plain_call() {
    let mut random = Random(21);
    let pairings = [Pairing::Halves, Pairing::Interleaved, Pairing::InterleavedToHalves];
    for round in 0..60 {
        let config = Config::new(DIM, 10000.0, pairings[round % 3]).with_angle(Angle::Exact);
        let config = config.with_rotary_dim(SPAN).with_rotary_offset(8);
        let context = config.build().unwrap();
        let sizes @ [batch, tokens] = [1 + random.below(3), 1 + random.below(5)];
        let mut ids = |n| (0..n).map(|_| random.next() as i64 >> 40).collect::<Vec<i64>>();
        let (offsets, by_token, by_batch) = (ids(batch), ids(tokens), ids(batch * tokens));
        let of = |positions| Step::new(batch, tokens, positions);
        let steps = [
            of(Positions::Offset(by_token[0])),
            of(Positions::seq_offsets(&offsets)).with_operation(Operation::Backward),
            of(Positions::tokens(&by_token)).with_operation(Operation::Shift),
            of(Positions::batch_tokens(&by_batch)).with_operation(Operation::Inverse),
        ];
        for step in &steps {
            every_dtype(&context, &mut random, step, sizes);
        }
        let mut rows = vec![0.0f32; batch * tokens * SPAN];
        context.fill_cos_sin(&steps[0], CosSinMut::packed(&mut rows)).unwrap();
        let step = Step::with_rows(batch, tokens, CosSin::packed(&rows));
        every_dtype(&context, &mut random, &step, sizes);
    }
}

#[test]
fn packed_buffers_turn_in_place() {
    let (rope, tokens, row) = (rope(), 9, 10 * 64);
    let strides = Strides { token: row, head: 64, batch: 0 };
    let step = Step::new(1, tokens, Positions::Offset(100));
    let shape = |heads| Shape::<bf16>::strided(heads, strides);
    let call = rope.prepare(&step, shape(6), shape(2)).unwrap();
    for _layer in 0..2 {
        let buffer: Vec<bf16> = Random(8).vec(tokens * row);
        let (mut got, mut want) = (buffer.clone(), buffer);
        let (q, k) = (Part::new(0, 6, strides), Part::new(6 * 64, 2, strides));
        rope.apply_packed(&step, &mut want, q, k).unwrap();
        call.apply_packed(&mut got, 0, 6 * 64).unwrap();
        assert_eq!(got, want);
        for (q, k, words) in [
            (0, 5 * 64, "Prepared::apply_packed: q overlaps k"),
            (0, 0, "Prepared::apply_packed: q overlaps k"),
            (0, 8 * 64 + 1, "k needs 5248 elements from 513 on, and the buffer has 5760"),
            (4 * 64 + 1, 0, "q needs 5504 elements from 257 on, and the buffer has 5760"),
            (0, usize::MAX, "k needs"),
        ] {
            let message = refused(call.apply_packed(&mut got, q, k));
            assert!(message.contains(words), "{message}");
        }
        assert_eq!(got, want);
        call.apply_packed(&mut got, 0, 8 * 64).unwrap(); // the last heads, up to the end
    }
}

#[test]
fn slices_of_other_lengths_are_refused() {
    let rope = rope();
    let step = Step::new(2, 3, Positions::Offset(5));
    let strides = Strides { batch: 3 * 128, token: 128, head: 0 }; // one head in place of two
    let k = (Shape::<bf16>::strided(2, strides), Shape::<bf16>::bhsd(2).span());
    let call = rope.prepare(&step, Shape::<f32>::bshd(4), k).unwrap();
    let (whole, reach, out) = (2 * 3 * 4 * 64, 5 * 128 + 64, 2 * 3 * 2 * 64);
    let rotate = |q_len: usize, k_len: usize, out_len: usize| {
        let (mut q, k) = (vec![1.0f32; q_len], vec![bf16::ONE; k_len]);
        let mut k_out = vec![bf16::ONE; out_len];
        let result = call.apply(&mut q, (&k, &mut k_out));
        let changed = q.iter().any(|x| x.to_bits() != 1.0f32.to_bits());
        assert_eq!(changed || k_out.iter().any(|&x| x != bf16::ONE), result.is_ok());
        result
    };
    rotate(whole, reach, out).unwrap();
    rotate(whole, reach + 1, out).unwrap(); // strides say where heads are, a longer slice is no matter
    let needs = |name, len, need: &str| {
        format!("Prepared::apply: {name} has {len} elements, and the prepared call needs {need}")
    };
    for len in [0, whole - 1, whole + 1, 2 * whole] {
        assert_eq!(refused(rotate(len, reach, out)), needs("q", len, "1536"));
    }
    for len in [0, reach - 1] {
        assert_eq!(refused(rotate(whole, len, out)), needs("k", len, "704 or more"));
    }
    for len in [0, out - 64, out + 64] {
        assert_eq!(refused(rotate(whole, reach, len)), needs("k_out", len, "768"));
    }
}

#[test]
fn what_the_plain_call_refuses_cannot_be_prepared() {
    let rope = rope();
    let step = Step::new(2, 3, Positions::Offset(5));
    let one = Shape::<f32>::bshd(1);
    let says = |message: String, words: &str| assert!(message.contains(words), "{message}");
    says(refused(rope.prepare(&step, (), ())), "Context::prepare: q and k must not both be absent");
    says(refused(rope.prepare(&step, Shape::<f32>::bshd(0), one)), "q.heads (0)");
    let unlike = (Shape::<f32>::bshd(2), Shape::<f32>::bshd(3));
    says(refused(rope.prepare(&step, one, unlike)), "k_out.heads (3)");
    let repeated = Shape::<f32>::strided(2, Strides { batch: 192, token: 64, head: 0 });
    says(refused(rope.prepare(&step, one, repeated)), "k: strides");
    let ids = Step::new(2, 3, Positions::tokens(&[1i32; 4]));
    says(refused(rope.prepare(&ids, one, one)), "4 entries, and the call needs 3");
    let moves_on = step.with_operation(Operation::Shift);
    says(refused(rope.prepare(&moves_on, one, one)), "Positions::Same moves all");
    // Sizes that no slice has.
    let many = Shape::<f32>::bshd(1 << 32);
    says(refused(rope.prepare(&step, one, many)), "heads (4294967296) must not be beyond");
    let wide = Shape::<f32>::strided(2, Strides { batch: 1, token: 1 << 63, head: 64 });
    says(refused(rope.prepare(&step, wide, one)), "beyond the address space");
    let long = Step::new(usize::MAX / 64, 64, Positions::Offset(0));
    says(refused(rope.prepare(&long, one, ())), "q with batch 288230376151711743, tokens 64");
    let strides = Strides { batch: usize::MAX, token: 128, head: 64 };
    let short = Step::new(1, 3, Positions::Offset(5));
    says(
        refused(rope.prepare(&short, Shape::<f32>::strided(2, strides), ())),
        "must not be beyond",
    );
    let long = Step::new(1, 1 << 50, Positions::Offset(0));
    let error = rope.prepare(&long, one, ()).unwrap_err();
    assert!(matches!(&error, Error::OutOfMemory(text) if text.starts_with("Context::prepare: ")));
}

#[test]
fn calls_without_work_do_nothing() {
    let rope = rope();
    for [batch, tokens] in [[0, 3], [2, 0], [0, 0]] {
        let step = Step::new(batch, tokens, Positions::Offset(0));
        let strided = Shape::<bf16>::strided(2, Strides { batch: 0, token: 128, head: 64 });
        let call = rope.prepare(&step, (Shape::<f32>::bhsd(4), Shape::sbhd(4)), strided).unwrap();
        let mut k = [bf16::ONE; 5];
        call.apply((&[], &mut []), &mut k).unwrap();
        assert_eq!(k, [bf16::ONE; 5]);
        let words = match [batch, tokens] {
            [0, 3] => "Prepared::apply: batch (0) is required: 1 for packed sequences",
            _ => "Prepared::apply: q has 1 elements, and the prepared call needs 0",
        };
        assert!(refused(call.apply((&[1.0], &mut []), &mut k)).contains(words));
    }
}

#[test]
fn threads_share_one_call() {
    let (rope, pool) = (rope(), Pool::new(2).unwrap());
    for (tokens, runner) in [(1, None), (2048, Some(pool.runner()))] {
        let step = Step::new(1, tokens, Positions::Offset(1000));
        let step = runner.into_iter().fold(step, |step, runner| step.with_runner(runner));
        let call = rope.prepare(&step, Shape::<f32>::bshd(2), Shape::<f32>::bshd(1)).unwrap();
        thread::scope(|scope| {
            for seed in 1..5 {
                let (rope, step, call) = (&rope, &step, &call);
                scope.spawn(move || {
                    let mut random = Random(seed);
                    for _layer in 0..16 {
                        let (mut q, mut k) = (random.vec(tokens * 128), random.vec(tokens * 64));
                        let (mut want_q, mut want_k): (Vec<f32>, Vec<f32>) = (q.clone(), k.clone());
                        let operand = ViewMut::bshd(&mut want_q, 2);
                        rope.apply(step, operand, ViewMut::bshd(&mut want_k, 1)).unwrap();
                        call.apply(&mut q, &mut k).unwrap();
                        assert!(q == want_q && k == want_k);
                    }
                });
            }
        });
    }
}

#[test]
fn panics_of_runners_arrive_with_their_payload() {
    struct Panics;
    // SAFETY: calls nothing, and tells so by the panic.
    unsafe impl ParallelFor for Panics {
        fn parallel_for(&self, _: u32, _: &(dyn Fn(u32) + Sync)) {
            panic::resume_unwind(Box::new("worker lost"));
        }
    }
    let rope = rope();
    let step = Step::new(1, 16384, Positions::Offset(0)).with_runner(Runner::new(&Panics));
    let call = rope.prepare(&step, Shape::<f32>::bshd(1), ()).unwrap();
    for _layer in 0..2 {
        let mut q = vec![1.0; 16384 * 64];
        let result = panic::catch_unwind(AssertUnwindSafe(|| call.apply(&mut q, ())));
        let payload = result.expect_err("the runner panics");
        assert_eq!(payload.downcast_ref(), Some(&"worker lost"));
    }
}
