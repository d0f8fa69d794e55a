//! Random calls of librope's safe API. This program has no unsafe code, so whatever is read or written
//! outside the slices it gives is a defect of librope. Writes are found by the program itself: around
//! and between what a call may touch, memory is compared bit by bit. Reads are found by running it
//! with a library built with AddressSanitizer: see RESULT.md.
//!
//! `librope-fuzz [--seconds N | --cases N] [--seed N]`
#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "what becomes of a random number does not matter"
)]
#![allow(clippy::missing_panics_doc, reason = "a panic is the finding")]

mod append;
mod calls;
mod codes;
mod contexts;
mod memory;
mod models;
mod norms;
mod prompt;
mod random;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use librope::{Error, Result};
use random::Random;

/// How many calls of each kind were accepted, and refused by which status.
#[derive(Default)]
pub struct Counts(BTreeMap<&'static str, (u64, BTreeMap<i32, u64>)>);

impl Counts {
    pub fn count<T>(&mut self, kind: &'static str, result: &Result<T>) {
        let (accepted, refused) = self.0.entry(kind).or_default();
        match result {
            Ok(_) => *accepted += 1,
            // A message names the rule; one that is empty or says "internal" helps nobody.
            Err(Error::Internal(message)) => panic!("{kind}: internal error: {message}"),
            Err(error) => {
                assert!(!error.message().is_empty(), "{kind}: an error without a message");
                *refused.entry(error.status()).or_default() += 1;
            }
        }
    }

    pub fn add(&mut self, other: Counts) {
        for (kind, (accepted, refused)) in other.0 {
            let sum = self.0.entry(kind).or_default();
            sum.0 += accepted;
            for (status, n) in refused {
                *sum.1.entry(status).or_default() += n;
            }
        }
    }

    fn print(&self) {
        let (mut all_accepted, mut all_refused) = (0, 0);
        println!("{:22} {:>12} {:>12}  refused by status", "call", "accepted", "refused");
        for (kind, (accepted, by_status)) in &self.0 {
            let refused: u64 = by_status.values().sum();
            let statuses: Vec<String> =
                by_status.iter().map(|(s, n)| format!("{s}: {n}")).collect();
            println!("{kind:22} {accepted:12} {refused:12}  {}", statuses.join(", "));
            all_accepted += accepted;
            all_refused += refused;
        }
        println!("{:22} {all_accepted:12} {all_refused:12}", "all");
    }
}

/// One case: everything in it follows from its seed.
fn case(seed: u64, counts: &mut Counts) {
    let mut random = Random::new(seed);
    match random.below(17) {
        0..=1 => prompt::case(&mut random, counts),
        2..=4 => models::case(&mut random, counts),
        5 => (0..8).for_each(|_| codes::case(&mut random, counts)),
        _ => {
            let Some(context) = contexts::make(&mut random, counts) else { return };
            for _ in 0..=random.below(24) {
                calls::case(&context, &mut random, counts);
            }
            if random.one_in(64) {
                calls::on_threads(&context, &mut random, counts);
            }
        }
    }
}

struct Options {
    seconds: Option<u64>,
    cases: u64,
    seed: u64,
}

fn options() -> Option<Options> {
    let mut options = Options { seconds: None, cases: u64::MAX, seed: 1 };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next()?.parse().ok()?;
        match name.as_str() {
            "--seconds" => options.seconds = Some(value),
            "--cases" => options.cases = value,
            "--seed" => options.seed = value,
            _ => return None,
        }
    }
    (options.seconds.is_some() || options.cases < u64::MAX).then_some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("usage: librope-fuzz [--seconds N | --cases N] [--seed N]");
        return ExitCode::from(2);
    };
    let (major, minor, patch) = librope::library_version();
    let plain = librope::Config::new(64, 1e4, librope::Pairing::Halves).build();
    let backend = plain.as_ref().map_or("none", librope::Context::backend);
    println!("librope {major}.{minor}.{patch} on {backend}, seed {}", options.seed);

    let start = Instant::now();
    let limit = options.seconds.map(Duration::from_secs);
    let mut counts = Counts::default();
    let mut cases = 0;
    while cases < options.cases && limit.is_none_or(|limit| start.elapsed() < limit) {
        // The seed of a case that fails is in the panic's message: `--seed` it with `--cases 1`.
        let seed = options.seed.wrapping_add(cases);
        let run = std::panic::AssertUnwindSafe(|| case(seed, &mut counts));
        if std::panic::catch_unwind(run).is_err() {
            eprintln!("case failed: --seed {seed} --cases 1");
            return ExitCode::FAILURE;
        }
        cases += 1;
    }
    counts.print();
    println!("{cases} cases in {} s, nothing outside was touched", start.elapsed().as_secs());
    ExitCode::SUCCESS
}
