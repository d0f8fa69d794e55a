//! Threads of the program's own: the same bits, and panics that arrive where they belong.

mod common;

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use common::Random;
use librope::{
    Config, Context, Error, Pairing, ParallelFor, Pool, Positions, Runner, Step, ViewMut,
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
