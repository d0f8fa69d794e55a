//! Tokens of one sequence on several ranks: together they have the bits of one call.

use librope::{
    Config, Context, CosSinMut, Error, Operation, Pairing, Positions, Shard, Step, ViewMut,
};
use librope::{CosSin, shard_ids};

const HEAD_DIM: usize = 16;

fn values(tokens: usize) -> Vec<f32> {
    (0..tokens * HEAD_DIM).map(|i| (i % 251) as f32 - 100.0).collect()
}

#[test]
fn ranks_together_have_the_bits_of_one_call() {
    let rope = Config::new(HEAD_DIM, 10000.0, Pairing::Halves).build().unwrap();
    let (length, cu) = (48, [0, 16, 48]);
    for operation in [Operation::Forward, Operation::Backward, Operation::Rerotate] {
        let step_of = |tokens| {
            let step = Step::new(1, tokens, Positions::Offset(7));
            match operation {
                Operation::Rerotate => step.rerotating(Positions::Offset(3)),
                _ => step.with_operation(operation),
            }
        };
        let mut whole = values(length);
        let step = step_of(length);
        rope.apply(&step.with_cu_seqlens(&cu), ViewMut::bshd(&mut whole, 1), ()).unwrap();
        for scheme in 0..5 {
            let mut seen = vec![0; length];
            for rank in 0..4 {
                let shard = match scheme {
                    0 => Shard::contiguous(rank, 4),
                    1 => Shard::zigzag(rank, 4),
                    2 => Shard::striped(rank, 4, 3),
                    3 => Shard::zigzag(rank, 4).per_document(),
                    _ => Shard::zigzag(rank / 2, 2).then(Shard::contiguous(rank % 2, 2)),
                };
                let tokens = length / 4;
                let step = step_of(tokens).with_cu_seqlens(&cu).with_shard(shard);
                let (_, numbers) = shard_ids(&step).unwrap();
                let rows: Vec<usize> =
                    numbers.iter().map(|&n| usize::try_from(n).unwrap()).collect();
                let all = values(length);
                let take = |from: &[f32]| -> Vec<f32> {
                    rows.iter().flat_map(|n| from[n * HEAD_DIM..][..HEAD_DIM].to_vec()).collect()
                };
                let mut q = take(&all);
                rope.apply(&step, ViewMut::bshd(&mut q, 1), ()).unwrap();
                assert_eq!(q, take(&whole), "scheme {scheme}, rank {rank}");
                rows.iter().for_each(|&n| seen[n] += 1);
            }
            assert_eq!(seen, vec![1; length]);
        }
    }
}

#[test]
fn keys_of_a_shard_move_from_ids() {
    let rope = Config::new(HEAD_DIM, 10000.0, Pairing::Halves).build().unwrap();
    let (cu, shard) = ([0, 4, 8], Shard::contiguous(1, 2));
    let step = Step::new(1, 4, Positions::Offset(20)).with_cu_seqlens(&cu).with_shard(shard);
    let (mut by_ids, mut by_offset) = (values(4), values(4));
    let (ids, _) =
        shard_ids(&Step::new(1, 4, Positions::Offset(5)).with_cu_seqlens(&cu).with_shard(shard))
            .unwrap();
    for (q, from) in
        [(&mut by_ids, Positions::tokens(&ids)), (&mut by_offset, Positions::Offset(5))]
    {
        rope.apply(&step.rerotating(from), ViewMut::bshd(q, 1), ()).unwrap();
    }
    assert_eq!(by_ids, by_offset);
}

/// A rank has a part of each sequence, or none, and each token moves from its own position and set.
#[test]
fn keys_of_a_shard_move_from_ids_and_sets() {
    let config = Config::new(HEAD_DIM, 10000.0, Pairing::Halves);
    let rope = Context::with_sets(&[config.clone(), config.with_theta(5e5)]).unwrap();
    let (length, cu, sets, from_sets) = (24, [0, 4, 4, 20, 24], [0, 1, 1, 0], [1, 0, 0, 0]);
    let ids: Vec<i64> = (0..length as i64).map(|n| n * n % 101).collect();
    let take = |all: &[f32], rows: &[usize]| -> Vec<f32> {
        rows.iter().flat_map(|n| all[n * HEAD_DIM..][..HEAD_DIM].to_vec()).collect()
    };
    let to = |tokens, from: Positions<'static>| {
        let step = Step::new(1, tokens, Positions::Offset(20)).rerotating(from);
        step.with_cu_seqlens(&cu).with_freq_sets(&sets)
    };
    let moved = |step: &Step<'_>, rows: &[usize]| {
        let mut k = take(&values(length), rows);
        rope.apply(step, (), ViewMut::bshd(&mut k, 1)).unwrap();
        k
    };
    let every: Vec<usize> = (0..length).collect();
    for rank in 0..2 {
        let outer = Shard::contiguous(rank, 2);
        for (shard, world) in [
            (outer, 2),
            (Shard::zigzag(rank, 2), 2),
            (Shard::striped(rank, 2, 1), 2),
            (Shard::zigzag(rank, 2).per_document(), 2),
            (outer.then(Shard::zigzag(1, 3)), 6),
        ] {
            let tokens = length / world;
            let (_, numbers) =
                shard_ids(&to(tokens, Positions::Same(0)).with_shard(shard)).unwrap();
            let rows: Vec<usize> = numbers.iter().map(|&n| usize::try_from(n).unwrap()).collect();
            let own: Vec<i64> = rows.iter().map(|&n| ids[n]).collect();
            for before in [None, Some(&from_sets)] {
                let check = |of_all, of_rank| {
                    let steps: [Step<'_>; 2] = [of_all, Step::with_shard(of_rank, shard)];
                    let [of_all, of_rank] = steps.map(|step| match before {
                        Some(sets) => step.from_freq_sets(sets),
                        None => step,
                    });
                    let want = take(&moved(&of_all, &every), &rows);
                    assert_eq!(moved(&of_rank, &rows), want, "{shard:?}, {before:?}");
                };
                let (of_all, of_rank) =
                    (to(length, Positions::Same(9)), to(tokens, Positions::Same(9)));
                check(of_all, of_rank);
                let [of_all, of_rank] = [(of_all, &ids), (of_rank, &own)]
                    .map(|(step, ids)| step.rerotating(Positions::tokens(ids)));
                check(of_all, of_rank);
            }
        }
    }
}

/// So this is what asks for the library's version: run-tests calls it with another one.
#[test]
fn ids_need_no_context() {
    let step = Step::new(2, 2, Positions::Offset(9)).with_shard(Shard::contiguous(1, 2));
    assert_eq!(shard_ids(&step).unwrap(), (vec![11, 12, 11, 12], vec![2, 3]));
}

#[test]
fn ids_beyond_memory_are_an_error() {
    let step = Step::new(1, 1 << 44, Positions::Offset(0));
    assert!(matches!(shard_ids(&step), Err(Error::OutOfMemory(_) | Error::InvalidArgument(_))));
}

#[test]
fn rows_are_those_of_the_shard() {
    let rope = Config::new(HEAD_DIM, 10000.0, Pairing::Halves).build().unwrap();
    let step = Step::new(1, 4, Positions::Offset(3)).with_shard(Shard::zigzag(0, 2));
    let mut rows = vec![0.0f32; 4 * HEAD_DIM];
    rope.fill_cos_sin(&step, CosSinMut::packed(&mut rows)).unwrap();
    let (mut by_rows, mut by_shard) = (values(4), values(4));
    rope.apply(&Step::with_rows(1, 4, CosSin::packed(&rows)), ViewMut::bshd(&mut by_rows, 1), ())
        .unwrap();
    rope.apply(&step, ViewMut::bshd(&mut by_shard, 1), ()).unwrap();
    assert_eq!(by_rows, by_shard);
    assert_eq!(shard_ids(&step).unwrap(), (vec![3, 4, 9, 10], vec![0, 1, 6, 7]));
}

#[test]
fn what_does_not_divide_is_refused() {
    let rope = Config::new(HEAD_DIM, 10000.0, Pairing::Halves).build().unwrap();
    let mut q = values(3);
    let refused = |step: &Step<'_>, q: &mut [f32], rule: &str| {
        let Err(Error::InvalidArgument(message)) = rope.apply(step, ViewMut::bshd(q, 1), ()) else {
            panic!("not refused: {rule}");
        };
        assert!(message.contains(rule), "{message}");
    };
    let step = Step::new(1, 3, Positions::Offset(0));
    refused(&step.with_shard(Shard::zigzag(0, 2)), &mut q, "tokens (3) must be a multiple of 2");
    refused(&step.with_shard(Shard::contiguous(2, 2)), &mut q, "rank (2) must be from 0 to 1");
    refused(&step.with_shard(Shard::heads(5, 1 << 40)), &mut q, "must be below 2^31");
    let half = Shard::contiguous(0, 2);
    refused(&step.with_shard(half.then(half).then(half)), &mut q, "two groups of ranks");
    refused(&step.with_shard(half.then(half.then(half))), &mut q, "two groups of ranks");
    refused(&step.with_shard(half.then(half.per_document())), &mut q, "must not be per_document");
    refused(&step.from_freq_sets(&[0]), &mut q, "from_freq_sets belongs to rerotating");
    let ids = Step::new(1, 3, Positions::tokens(&[0i64; 3]));
    refused(&ids.with_shard(Shard::contiguous(0, 2)), &mut q, "shard is set");
    assert_eq!(q, values(3));
    let rows = [1.0f32; 3 * HEAD_DIM];
    let by_rows = Step::with_rows(1, 3, CosSin::packed(&rows)).with_shard(Shard::contiguous(0, 2));
    refused(&by_rows, &mut q, "belong to positions");
    assert!(shard_ids(&Step::with_rows(1, 3, CosSin::packed(&rows))).is_err());
}
