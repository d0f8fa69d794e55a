use librope_sys as sys;

use crate::error::{Result, invalid};

/// Which tokens of a step's sequences this process has, when several ranks share them (context
/// parallelism). Tensors and the `tokens` of [`Step::new`](crate::Step::new) are then those of this
/// rank, and offsets, `cu_seqlens` and `freq_sets` those of whole sequences, the same on every rank.
/// What the ranks compute, put together, has the bits that one process computes.
///
/// ```
/// use librope::{Config, Pairing, Positions, Shard, Step, ViewMut};
///
/// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
/// let (rank, ranks, length) = (1, 4, 16); // tokens 2, 3, 12 and 13 of 16
/// let step = Step::new(1, length / ranks, Positions::Offset(0))
///     .with_shard(Shard::zigzag(rank, ranks));
/// let mut q = vec![1.0f32; length / ranks * 8 * 64];
/// rope.apply(&step, ViewMut::bshd(&mut q, 8), ())?;
/// # Ok::<(), librope::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Shard {
    raw: sys::rope_shard,
    wrong: Option<&'static str>, // what no call can do
}

impl Shard {
    /// One piece: Ulysses before its all-to-all, plain ring attention.
    pub fn contiguous(rank: usize, world: usize) -> Shard {
        Shard::of(sys::ROPE_SHARD_CONTIGUOUS, rank, world, 0)
    }

    /// Chunks `rank` and `2 * world - 1 - rank` of `2 * world`: Megatron-LM, `TransformerEngine`,
    /// `PyTorch`'s head-tail load balancer, `MaxText`.
    pub fn zigzag(rank: usize, world: usize) -> Shard {
        Shard::of(sys::ROPE_SHARD_ZIGZAG, rank, world, 0)
    }

    /// In turn a stripe of `block` tokens for each rank; 1 is striped attention.
    pub fn striped(rank: usize, world: usize, block: usize) -> Shard {
        Shard::of(sys::ROPE_SHARD_STRIPED, rank, world, block)
    }

    /// All tokens, and heads of its own: Ulysses behind its all-to-all. Changes no position.
    pub fn heads(rank: usize, world: usize) -> Shard {
        Shard::of(sys::ROPE_SHARD_HEADS, rank, world, 0)
    }

    /// Each document of `cu_seqlens` is divided by itself; their lengths must divide.
    pub fn per_document(mut self) -> Shard {
        self.raw.per_document = 1;
        self
    }

    /// A second group of ranks divides what a rank of this one has, by its own scheme: ring attention
    /// and Ulysses are `Shard::zigzag(ring_rank, ring).then(Shard::contiguous(rank, ulysses))`. Calls
    /// refuse a third group, and an `inner` that is [`per_document`](Shard::per_document).
    pub fn then(mut self, inner: Shard) -> Shard {
        if self.raw.inner_scheme != 0 || inner.raw.inner_scheme != 0 {
            self.wrong = Some("Shard::then: there are two groups of ranks at most");
        } else if inner.raw.per_document != 0 {
            self.wrong = Some("Shard::then: inner divides a row, and must not be per_document");
        }
        self.wrong = self.wrong.or(inner.wrong);
        self.raw.inner_scheme = inner.raw.scheme;
        self.raw.inner_rank = inner.raw.rank;
        self.raw.inner_world = inner.raw.world;
        self.raw.inner_block = inner.raw.block;
        self
    }

    fn of(scheme: i32, rank: usize, world: usize, block: usize) -> Shard {
        let narrow = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let wrong = [rank, world, block].iter().any(|&n| i32::try_from(n).is_err());
        let wrong = wrong.then_some("Shard: rank, world and block must be below 2^31");
        let (rank, world, block) = (narrow(rank), narrow(world), narrow(block));
        // SAFETY: integers: zeros are valid.
        let zero: sys::rope_shard = unsafe { std::mem::zeroed() };
        Shard { raw: sys::rope_shard { scheme, rank, world, block, ..zero }, wrong }
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> Result<*const sys::rope_shard> {
        match self.wrong {
            None => Ok(&raw const self.raw),
            Some(wrong) => invalid(format_args!("{wrong}")),
        }
    }
}
