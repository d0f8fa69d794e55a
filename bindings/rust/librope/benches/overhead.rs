//! What a call costs from Rust beyond the C call itself.
//!
//! `cargo bench -p librope --bench overhead`: criterion's tables, then the medians of pairs that
//! alternate, which noise of the machine hits alike.

use std::ffi::c_void;
use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput};
use librope::half::bf16;
use librope::sys::{self, Init as _};
use librope::{Config, Context, Pairing, Positions, Step, ViewMut};

const Q: usize = 32;
const K: usize = 8;
const DIM: usize = 128;

/// The same call through the declarations alone: what a C program does, arguments built per call.
unsafe fn c_apply(rope: &Context, tokens: usize, offset: i64, q: *mut c_void, k: *mut c_void) {
    let mut args = sys::rope_qk_args::init();
    args.batch = 1;
    args.tokens = tokens as i64;
    args.q.data = q;
    args.q.dtype = sys::ROPE_DTYPE_BF16;
    args.q.layout = sys::ROPE_LAYOUT_BSHD;
    args.q.heads = Q as i32;
    args.k.data = k;
    args.k.dtype = sys::ROPE_DTYPE_BF16;
    args.k.layout = sys::ROPE_LAYOUT_BSHD;
    args.k.heads = K as i32;
    args.positions.kind = sys::ROPE_POSITIONS_OFFSET;
    args.positions.offset = offset;
    // SAFETY: the caller's pointers hold `tokens` tokens.
    assert_eq!(unsafe { sys::rope_apply_qk(rope.as_raw(), &args) }, 0);
}

unsafe fn c_thd(rope: &Context, ids: &[i64], q: *mut c_void, k: *mut c_void) {
    let (tokens, ids) = (ids.len() as i64, ids.as_ptr());
    // SAFETY: the caller's pointers hold as many tokens as `ids`.
    let status = unsafe {
        sys::rope_apply_thd(
            rope.as_raw(),
            sys::ROPE_DTYPE_BF16,
            tokens,
            ids,
            q,
            Q as i32,
            k,
            K as i32,
        )
    };
    assert_eq!(status, 0);
}

type Function = fn(&mut Case);

struct Case {
    rope: Context,
    tokens: usize,
    ids: Vec<i64>,
    q: Vec<bf16>,
    k: Vec<bf16>,
}

impl Case {
    fn new(tokens: usize) -> Case {
        Case {
            rope: Config::new(DIM, 500_000.0, Pairing::Halves).build().expect("a plain config"),
            tokens,
            ids: (1000..).take(tokens).collect(),
            q: vec![bf16::from_f32(0.25); tokens * Q * DIM],
            k: vec![bf16::from_f32(0.25); tokens * K * DIM],
        }
    }

    fn apply_c(&mut self) {
        let (q, k) = (self.q.as_mut_ptr().cast(), self.k.as_mut_ptr().cast());
        // SAFETY: q and k hold `tokens` tokens.
        unsafe { c_apply(&self.rope, self.tokens, black_box(1000), q, k) }
    }

    fn apply_rust(&mut self) {
        let step = Step::new(1, self.tokens, Positions::Offset(black_box(1000)));
        let (q, k) = (ViewMut::bshd(&mut self.q, Q), ViewMut::bshd(&mut self.k, K));
        self.rope.apply(&step, q, k).expect("a valid call");
    }

    fn thd_c(&mut self) {
        let (q, k) = (self.q.as_mut_ptr().cast(), self.k.as_mut_ptr().cast());
        // SAFETY: q and k hold as many tokens as `ids`.
        unsafe { c_thd(&self.rope, black_box(&self.ids), q, k) }
    }

    fn thd_rust(&mut self) {
        let ids = black_box(&self.ids);
        self.rope.apply_thd(ids, &mut self.q, Q, &mut self.k, K).expect("a valid call");
    }
}

/// Median nanoseconds of two functions and of their difference, over rounds that alternate.
fn pair(case: &mut Case, calls: u32, c: Function, rust: Function) -> [f64; 3] {
    let mut time = |f: Function| {
        let start = Instant::now();
        (0..calls).for_each(|_| f(case));
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    };
    let mut rounds: [Vec<f64>; 3] = Default::default();
    for round in 0..101 {
        // Whoever goes second finds warmer caches: take turns.
        let (a, b) = match round % 2 {
            0 => (time(c), time(rust)),
            _ => {
                let b = time(rust);
                (time(c), b)
            }
        };
        rounds[0].push(a);
        rounds[1].push(b);
        rounds[2].push(b - a);
    }
    rounds.map(|mut values| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    })
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for tokens in [1, 512] {
        let mut group = criterion.benchmark_group(format!("bf16 32+8 heads, {tokens} tokens"));
        group.throughput(Throughput::Elements(tokens as u64));
        let mut case = Case::new(tokens);
        let functions: [(&str, Function); 4] = [
            ("rope_apply_qk", Case::apply_c),
            ("Context::apply", Case::apply_rust),
            ("rope_apply_thd", Case::thd_c),
            ("Context::apply_thd", Case::thd_rust),
        ];
        for (name, f) in functions {
            group.bench_function(BenchmarkId::from_parameter(name), |b| b.iter(|| f(&mut case)));
        }
        group.finish();
    }
    criterion.final_summary();

    println!("\n{:34} {:>10} {:>10} {:>9} {:>7}", "", "C ns", "Rust ns", "+ ns", "ratio");
    for (tokens, calls) in [(1, 20_000), (512, 20)] {
        let mut case = Case::new(tokens);
        let [c, rust, more] = pair(&mut case, calls, Case::apply_c, Case::apply_rust);
        println!(
            "{:34} {c:10.1} {rust:10.1} {more:9.1} {:7.3}",
            format!("apply, {tokens} tokens"),
            rust / c
        );
        let [c, rust, more] = pair(&mut case, calls, Case::thd_c, Case::thd_rust);
        println!(
            "{:34} {c:10.1} {rust:10.1} {more:9.1} {:7.3}",
            format!("apply_thd, {tokens} tokens"),
            rust / c
        );
    }
}
