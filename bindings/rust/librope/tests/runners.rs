//! Threads of the program's own: the same bits, and panics that arrive where they belong.

mod common;

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use common::Random;
use librope::{
    CacheShape, Call, Config, Context, Error, KvCache, Layer, Pages, Pairing, ParallelFor, Part,
    Pool, Positions, Runner, Shape, Slots, Step, Strides, View, ViewMut,
};

fn rope(head_dim: usize) -> Context {
    Config::new(head_dim, 10000.0, Pairing::Halves).build().unwrap()
}

struct Threads(AtomicU32);

// SAFETY: one scoped thread per index, joined at the end.
unsafe impl ParallelFor for Threads {
    fn parallel_for(&self, count: u32, task: &(dyn Fn(u32) + Sync)) {
        self.0.fetch_add(count, Ordering::Relaxed);
        thread::scope(|scope| {
            for i in 0..count {
                scope.spawn(move || task(i));
            }
        });
    }
}

/// Ends with the payload that `of` makes.
struct Panics<F: Fn() -> Box<dyn Any + Send> + Sync> {
    of: F,
}

// SAFETY: calls nothing, and tells so by the panic.
unsafe impl<F: Fn() -> Box<dyn Any + Send> + Sync> ParallelFor for Panics<F> {
    fn parallel_for(&self, _: u32, _: &(dyn Fn(u32) + Sync)) {
        panic::resume_unwind((self.of)());
    }
}

#[test]
fn runners_give_the_bits_of_one_thread() {
    let rope = rope(128);
    let x: Vec<f32> = Random(15).vec(1024 * 8 * 128);
    let rotate = |runner: Option<Runner>| {
        let mut q = x.clone();
        let step = Step::new(1, 1024, Positions::Offset(3));
        let step = runner.into_iter().fold(step, |step, runner| step.with_runner(runner));
        rope.apply(&step, ViewMut::bshd(&mut q, 8), ()).map(|()| q)
    };
    let want = rotate(None).unwrap();
    let pool = Pool::new(2).unwrap();
    assert!(rotate(Some(pool.runner())).unwrap() == want);
    let threads = Threads(AtomicU32::new(0));
    assert!(rotate(Some(Runner::new(&threads))).unwrap() == want);
    assert!(threads.0.into_inner() > 1);
    #[cfg(feature = "rayon")]
    {
        assert!(rotate(Some(Runner::rayon())).unwrap() == want);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        assert!(rotate(Some(Runner::new(&pool))).unwrap() == want);
    }
}

/// A call long enough for a runner, and what it panicked with.
fn panic_of(runner: Runner) -> Box<dyn Any + Send> {
    let rope = rope(64);
    let mut q = vec![1.0f32; 16384 * 64];
    let step = Step::new(1, 16384, Positions::Offset(0)).with_runner(runner);
    let call = || rope.apply(&step, ViewMut::bshd(&mut q, 1), ());
    panic::catch_unwind(AssertUnwindSafe(call)).expect_err("the runner panics")
}

#[test]
fn panics_of_runners_arrive_with_their_payload() {
    let text = Panics { of: || Box::new("worker lost: node 7".to_string()) };
    let payload = panic_of(Runner::new(&text));
    assert_eq!(payload.downcast_ref::<String>().unwrap(), "worker lost: node 7");

    // Once: the next call on this thread has nothing of it.
    let mut q = vec![1.0f32; 64];
    rope(64).apply_thd(&[3], &mut q, 1, &mut [], 0).unwrap();
    let threads = Threads(AtomicU32::new(0));
    let mut q = vec![1.0f32; 16384 * 64];
    let step = Step::new(1, 16384, Positions::Offset(0)).with_runner(Runner::new(&threads));
    rope(64).apply(&step, ViewMut::bshd(&mut q, 1), ()).unwrap();
}

#[test]
fn payloads_that_panic_when_dropped_are_not_dropped_inside() {
    static DROPPED: AtomicBool = AtomicBool::new(false);
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            DROPPED.store(true, Ordering::Relaxed);
            panic!("dropped");
        }
    }
    let payload = panic_of(Runner::new(&Panics { of: || Box::new(Bomb) }));
    assert!(payload.is::<Bomb>() && !DROPPED.load(Ordering::Relaxed));
    panic::catch_unwind(AssertUnwindSafe(|| drop(payload)))
        .expect_err("it is the caller's to drop");
}

/// A runner that itself makes a call whose runner panics, and catches that.
#[test]
fn panics_of_inner_calls_stay_inside() {
    struct Nested;
    // SAFETY: calls every task once, one after the other.
    unsafe impl ParallelFor for Nested {
        fn parallel_for(&self, count: u32, task: &(dyn Fn(u32) + Sync)) {
            let inner = Panics { of: || Box::new("inner") };
            assert_eq!(panic_of(Runner::new(&inner)).downcast_ref(), Some(&"inner"));
            (0..count).for_each(task);
        }
    }
    let mut q = vec![1.0f32; 16384 * 64];
    let step = Step::new(1, 16384, Positions::Offset(0)).with_runner(Runner::new(&Nested));
    rope(64).apply(&step, ViewMut::bshd(&mut q, 1), ()).unwrap();
}

/// It may skip or repeat what it likes: the library counts.
#[test]
fn tasks_that_did_not_run_once_are_an_error() {
    struct Counts(u32, u32);
    // SAFETY: none: it breaks the rule, one task after the other on this thread, as the test wants.
    unsafe impl ParallelFor for Counts {
        fn parallel_for(&self, count: u32, task: &(dyn Fn(u32) + Sync)) {
            (self.0..count).for_each(task);
            (0..self.1).for_each(task);
        }
    }
    for (runner, good) in [(Counts(0, 0), true), (Counts(1, 0), false), (Counts(0, 1), false)] {
        let mut q = vec![1.0f32; 16384 * 64];
        let step = Step::new(1, 16384, Positions::Offset(0)).with_runner(Runner::new(&runner));
        let result = rope(64).apply(&step, ViewMut::bshd(&mut q, 1), ());
        assert!(if good { result.is_ok() } else { matches!(result, Err(Error::Runner(_))) });
    }
}

/// Two threads must not write one slot: where tokens have the same one, the call stays on its thread, and
/// only there.
#[test]
fn tokens_in_one_slot_need_no_threads() {
    const TOKENS: usize = 4608;
    let rope = rope(64);
    let k: Vec<f32> = Random(3).vec(2 * TOKENS * 64);
    let mut packed = vec![0.0f32; 3 * k.len()];
    let (mut keys, mut others) = (vec![0.0f32; 4 * TOKENS * 64], vec![0.0f32; 4 * TOKENS * 64]);
    let half = TOKENS as i32 / 2;
    let apart: Vec<i64> = (0..2 * TOKENS as i64).rev().collect();
    let mut twice = apart.clone();
    twice[7] = twice[2 * TOKENS - 1];
    let narrow = |slots: &[i64]| slots.iter().map(|&n| n as i32).collect::<Vec<_>>();
    let (apart_i32, twice_i32) = (narrow(&apart), narrow(&twice));
    let nowhere = vec![-1; 2 * TOKENS];
    let (whole, beside) = ([0, 0], [0, half]);
    // Runs of half the tokens, of all, and of the other half: in one page, beside the first half or over it.
    let cu = [0, half, 3 * half, 4 * half];
    let (first, starts) = ([half, 0, 0], [half, 0, half + 1]);
    let cases = [
        (Slots::mapped(&apart), None, true),
        (Slots::mapped(&twice), None, false),
        (Slots::mapped(&apart_i32), None, true),
        (Slots::mapped(&twice_i32), None, false),
        (Slots::mapped(&nowhere), None, true),
        (Slots::linear(&whole), None, true),
        (Slots::paged(&[2, -1, 1, -1], 2, &whole), None, true),
        (Slots::paged(&[2, -1, 2, -1], 2, &whole), None, false),
        (Slots::paged(&[2, -1, -1, -1], 2, &whole), None, true),
        (Slots::paged(&[2, -1, 3, 1], 2, &beside), None, true),
        (Slots::paged(&[2, -1, 3, 2], 2, &beside), None, false),
        (Slots::ragged(&[0, 1, 0, 2], &[0, 1, 2, 4], &first), Some(&cu), true),
        (Slots::ragged(&[0, 1, 0, 2], &[0, 1, 2, 4], &starts), Some(&cu), false),
        (Slots::ragged(&[0, 1, 3, 0], &[0, 1, 2, 4], &starts), Some(&cu), true),
        (Slots::ragged(&[0, 1, 3, 1], &[0, 1, 2, 4], &starts), Some(&cu), false),
    ];
    for (number, (slots, cu, has_threads)) in cases.into_iter().enumerate() {
        let threads = Threads(AtomicU32::new(0));
        let (batch, tokens) = if cu.is_some() { (1, 2 * TOKENS) } else { (2, TOKENS) };
        let step = Step::new(batch, tokens, Positions::Offset(0)).with_slots(slots);
        let step = cu.into_iter().fold(step, |step, cu| step.with_cu_seqlens(cu));
        let step = step.with_runner(Runner::new(&threads));
        let ran = |what: &str| {
            let got = threads.0.swap(0, Ordering::Relaxed) > 0;
            assert_eq!(got, has_threads, "{what} in case {number}");
        };

        let mut cache = KvCache::new(4, TOKENS).with_k(Pages::nhd(&mut keys, 1));
        rope.append(&step, (), View::bshd(&k, 1), (), &mut cache).unwrap();
        ran("append");
        let call = Call::new().with_k(View::bshd(&k, 1)).with_cache(&mut cache);
        rope.apply_call(&step, call).unwrap();
        ran("apply_call");
        let source = KvCache::new(4, TOKENS).with_k(Pages::nhd(&mut others, 1));
        let moves = step.rerotating(Positions::Offset(1)).with_source(Slots::mapped(&apart));
        rope.move_between(&moves, &source, &mut cache).unwrap();
        ran("move_between");
        let part =
            |i| Part::new(i * k.len(), 1, Strides { batch: tokens * 64, token: 64, head: 64 });
        let mut cache = cache.with_v(Pages::nhd(&mut others, 1));
        rope.append_packed(&step, &mut packed, part(0), part(1), part(2), &mut cache).unwrap();
        ran("append_packed");

        let shape = CacheShape::new(4, TOKENS, Shape::<f32>::nhd(1), ());
        let append = rope.prepare_append(&step, (), Shape::<f32>::bshd(1), (), shape).unwrap();
        let mut cache = KvCache::new(4, TOKENS).with_k(Pages::<f32>::nhd(&mut [], 1));
        let call = Call::new().with_k(View::<f32>::bshd(&[], 1)).with_cache(&mut cache);
        let call = rope.prepare_call(&step, call).unwrap();
        let (append, call) = (Box::new(append), Box::new(call)); // elsewhere than they were made
        append.apply((), &k, (), (&mut keys, ())).unwrap();
        ran("prepare_append");
        call.apply(Layer::new().with_k(&k).with_cache_k(&mut keys)).unwrap();
        ran("prepare_call");
    }
}
