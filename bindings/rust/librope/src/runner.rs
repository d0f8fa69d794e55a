use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{self, NonNull};

use librope_sys as sys;

use crate::error::{Result, check, made, named, narrow, require_library};

/// Threads for calls that move more than 2 MiB, which are cut into tasks of 256 KiB to 1 MiB. A
/// decode step always runs on the calling thread, and so does everything without a runner, and a call in which
/// two tokens have one [slot](crate::Slots).
///
/// From a [`Pool`], from rayon (`Runner::rayon`, feature `rayon`), or from any [`ParallelFor`].
#[derive(Clone, Copy)]
#[must_use]
pub struct Runner<'a> {
    pub(crate) raw: sys::rope_runner,
    of: PhantomData<&'a ()>,
}

// SAFETY: made from a `&'a` of a type that is Sync.
unsafe impl Send for Runner<'_> {}
// SAFETY: as above.
unsafe impl Sync for Runner<'_> {}

/// A way to run tasks on several threads.
///
/// # Safety
/// [`parallel_for`](ParallelFor::parallel_for) must call `task(i)` exactly once for every `i` below
/// `count`, in any order and on any threads, and return after the last call has: tasks write to the
/// caller's tensors. The library counts the calls: one that returns after fewer or more of them becomes
/// [`Error::Runner`](crate::Error::Runner). A panic tells that some were not called; it, too, leaves only when no
/// task runs any more, and none may be called from then on. It leaves the call that lent the runner with its
/// payload, as from [`std::thread::scope`], and the tensors are unspecified.
///
/// ```
/// use librope::{ParallelFor, Runner};
///
/// struct Scoped;
///
/// // SAFETY: one thread per index, joined at the end of the scope.
/// unsafe impl ParallelFor for Scoped {
///     fn parallel_for(&self, count: u32, task: &(dyn Fn(u32) + Sync)) {
///         std::thread::scope(|scope| {
///             for i in 0..count {
///                 scope.spawn(move || task(i));
///             }
///         });
///     }
/// }
/// let runner = Runner::new(&Scoped);
/// ```
pub unsafe trait ParallelFor: Sync {
    /// Calls `task(0)` to `task(count - 1)`.
    fn parallel_for(&self, count: u32, task: &(dyn Fn(u32) + Sync));
}

impl<'a> Runner<'a> {
    /// A runner of one's own.
    pub fn new<P: ParallelFor>(pool: &'a P) -> Runner<'a> {
        let raw = sys::rope_runner {
            parallel_for: Some(call::<P>),
            pool: ptr::from_ref(pool).cast_mut().cast(),
        };
        Runner::of(raw)
    }

    /// One that lives for `'a`.
    pub(crate) fn of(raw: sys::rope_runner) -> Runner<'a> {
        Runner { raw, of: PhantomData }
    }

    pub(crate) fn as_raw(&self) -> *const sys::rope_runner {
        &raw const self.raw
    }
}

/// The C callback of every [`ParallelFor`].
unsafe extern "C" fn call<P: ParallelFor>(
    pool: *mut c_void,
    f: sys::rope_task_fn,
    task: *mut c_void,
    count: u32,
) -> i32 {
    struct Task(*mut c_void);
    // SAFETY: the library lets any thread run its tasks, several at once.
    unsafe impl Sync for Task {}
    impl Task {
        // A method, so that closures capture the struct, which is Sync, and not its field.
        fn get(&self) -> *mut c_void {
            self.0
        }
    }

    let Some(f) = f else { return 1 };
    // SAFETY: Runner::new put it there, and the Runner's lifetime keeps it.
    let pool = unsafe { &*pool.cast::<P>() };
    let task = Task(task);
    // Unwinding must not reach C: it goes on in `resume`, when the C call has returned.
    let result = panic::catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the library's own function and argument, with an index below `count`.
        pool.parallel_for(count, &|i| unsafe { f(task.get(), i) });
    }));
    let Err(payload) = result else { return 0 };
    PANIC.set(Some(payload));
    1
}

thread_local! {
    /// The panic of a runner, from the C callback to the end of the C call: both are on the thread
    /// that made the call, and nothing runs between them.
    static PANIC: Cell<Option<Box<dyn Any + Send>>> = const { Cell::new(None) };
}

/// Goes on with the panic that ended this thread's C call, if that was what ended it. The payload is
/// never dropped here: its own `drop` might panic.
#[cold]
pub(crate) fn resume() {
    if let Some(payload) = PANIC.take() {
        panic::resume_unwind(payload);
    }
}

impl fmt::Debug for Runner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").finish_non_exhaustive()
    }
}

/// librope's own threads, for programs that have none. Concurrent calls take turns.
///
/// ```
/// use librope::{Config, Pairing, Pool, Positions, Step, ViewMut};
///
/// let pool = Pool::new(2)?;
/// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
/// let mut q = vec![1.0f32; 1024 * 8 * 64];
/// let step = Step::new(1, 1024, Positions::Offset(0)).with_runner(pool.runner());
/// rope.apply(&step, ViewMut::bshd(&mut q, 8), ())?;
/// # Ok::<(), librope::Error>(())
/// ```
pub struct Pool(NonNull<sys::rope_pool>);

// SAFETY: any thread may use the pool; only destroying needs it alone, and Drop has that.
unsafe impl Send for Pool {}
// SAFETY: as above: concurrent calls take turns.
unsafe impl Sync for Pool {}

impl Pool {
    /// `threads` says how many work, the caller's included; 0: one per CPU of this process.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) if the system refuses to start a thread,
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) without memory, and
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) beyond 4096 threads.
    pub fn new(threads: usize) -> Result<Pool> {
        named("Pool::new", || {
            require_library()?;
            let threads = narrow("threads", threads)?;
            let mut pool = ptr::null_mut();
            // SAFETY: `pool` is writable.
            check(unsafe { sys::rope_pool_create(threads, &raw mut pool) })?;
            Ok(Pool(made(pool)?))
        })
    }

    /// For [`Step::with_runner`](crate::Step::with_runner).
    pub fn runner(&self) -> Runner<'_> {
        // SAFETY: the pool is alive, and its runner lives as long.
        Runner::of(unsafe { *sys::rope_pool_runner(self.0.as_ptr()) })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made by rope_pool_create; runners of it have ended with their lifetime.
        unsafe { sys::rope_pool_destroy(self.0.as_ptr()) }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

#[cfg(feature = "rayon")]
mod with_rayon {
    use rayon::ThreadPool;
    use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};

    use super::{ParallelFor, Runner};

    struct Current;

    // SAFETY: rayon calls the closure once per index and returns after the last.
    unsafe impl ParallelFor for Current {
        fn parallel_for(&self, count: u32, task: &(dyn Fn(u32) + Sync)) {
            // With one thread, a pool would only move the work to another core.
            if rayon::current_num_threads() < 2 {
                return (0..count).for_each(task);
            }
            (0..count).into_par_iter().for_each(task);
        }
    }

    // SAFETY: as above; `install` returns after its closure has.
    unsafe impl ParallelFor for ThreadPool {
        fn parallel_for(&self, count: u32, task: &(dyn Fn(u32) + Sync)) {
            self.install(|| Current.parallel_for(count, task));
        }
    }

    impl Runner<'static> {
        /// The rayon pool that the call is made in, else rayon's global one. For a certain pool:
        /// `Runner::new(&thread_pool)`.
        pub fn rayon() -> Runner<'static> {
            Runner::new(&Current)
        }
    }
}
