//! Long calls run on the rayon pool that the caller is in, as candle's own functions do.
#![cfg(target_os = "linux")]

mod common;

use candle_core::DType;
use common::{numbers, tables};
use librope_candle::rope;

/// The clock ticks that the thread of this name has run for.
fn ticks(name: &str) -> u64 {
    let mut all = 0;
    for task in std::fs::read_dir("/proc/self/task").expect("Linux has /proc").flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim() == name {
            // Behind the name, which is in brackets: utime and stime are fields 12 and 13.
            let stat = read("stat");
            let fields: Vec<&str> =
                stat.rsplit(')').next().expect("one part").split_whitespace().collect();
            all += fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        }
    }
    all
}

#[test]
fn other_threads_of_the_pool_do_their_part() {
    let x = numbers(&[1, 32, 512, 128], DType::F32).unwrap();
    let (cos, sin) = tables(512, 128, DType::F32).unwrap();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(2)
        .thread_name(|i| format!("rope-{i}"))
        .build()
        .unwrap();
    // One job for the pool, so the other thread has nothing to do but what librope gives it.
    pool.install(|| {
        let other = format!("rope-{}", 1 - rayon::current_thread_index().expect("in the pool"));
        let idle = ticks(&other);
        let mut calls = 0;
        while ticks(&other) < idle + 10 {
            rope(&x, &cos, &sin).unwrap();
            calls += 1;
            assert!(calls < 20_000, "{other} never worked");
        }
    });
}
