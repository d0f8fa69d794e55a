//! Random calls that norm q and k, as they are and prepared: of every kind, with arrays of the right lengths
//! and of others. A prepared call that is accepted has the bytes of one that is not prepared.

use librope::{Call, Context, Layer, Layout, Norm, NormOrder, NormRounding, Norms, View, ViewMut};

use crate::Counts;
use crate::calls::{Arrays, Sizes, sizes};
use crate::memory::{Bits, Memory};
use crate::random::Random;

/// A norm and the arrays that it reads.
struct Choice<W> {
    kind: usize,
    given: bool,
    per_head: bool,
    all_heads: bool,
    order: NormOrder,
    rounding: NormRounding,
    eps: f64,
    weight: Vec<W>,
    bias: Vec<W>,
    rstd: Vec<f32>,
}

impl<W: Bits> Choice<W> {
    fn new(random: &mut Random, heads: usize, dim: usize, tokens: usize) -> Choice<W> {
        let (given, all_heads, per_head) = (random.one_in(5), random.one_in(5), random.one_in(4));
        let rows = if given || all_heads || per_head { heads } else { 1 };
        let mut len =
            |usual: usize| if random.one_in(24) { random.size(usual).min(1 << 14) } else { usual };
        let (weights, biases, roots) = (len(rows * dim), len(rows * dim), len(tokens));
        Choice {
            kind: random.below(5),
            given,
            per_head,
            all_heads,
            order: random.pick(&[NormOrder::Before, NormOrder::Before, NormOrder::After]),
            rounding: random.pick(&[
                NormRounding::Float32,
                NormRounding::Rounded,
                NormRounding::Eager,
            ]),
            eps: if random.one_in(16) { random.number() } else { 1e-6 },
            weight: (0..weights).map(|_| W::from_number(random)).collect(),
            bias: (0..biases).map(|_| W::from_number(random)).collect(),
            rstd: (0..roots).map(|_| random.below(99) as f32 / 16.0).collect(),
        }
    }

    /// With these arrays, or with empty ones.
    fn norm<'a>(&self, weight: &'a [W], bias: &'a [W], rstd: &'a [f32]) -> Norm<'a> {
        let norm = match self.kind {
            0 => Norm::rms(weight, self.eps),
            1 => Norm::rms_one_plus(weight, self.eps),
            2 => Norm::rms_plain(self.eps),
            3 => Norm::layer(weight, self.eps),
            _ => Norm::layer_bias(weight, bias, self.eps),
        };
        let norm = if self.per_head && self.kind != 2 { norm.per_head() } else { norm };
        let norm = if self.all_heads { norm.over_all_heads() } else { norm };
        let norm = if self.given { norm.with_rstd(rstd) } else { norm };
        norm.with_order(self.order).with_rounding(self.rounding)
    }
    fn whole(&self) -> Norm<'_> {
        self.norm(&self.weight, &self.bias, &self.rstd)
    }
}

/// A slice of memory that holds numbers, not any bits: norms of NaN say little.
fn numbers<T: Bits>(random: &mut Random, len: usize) -> Memory<T> {
    let values: Vec<T> = (0..len).map(|_| T::from_number(random)).collect();
    Memory::holding(random, &values)
}

pub fn call<T: Bits, W: Bits>(context: &Context, random: &mut Random, counts: &mut Counts) {
    let Sizes { batch, tokens } = sizes(random);
    let (batch, tokens) = (batch.min(4), tokens.min(64)); // there is memory for all of them
    let sizes = Sizes { batch, tokens };
    let arrays = Arrays::new(random, context, &sizes);
    let dim = context.head_dim();
    let heads = [1 + random.below(5), 1 + random.below(3)];
    let layout = random.pick(&[Layout::Bshd, Layout::Bhsd, Layout::Sbhd]);
    let mut len = |heads: usize| {
        let usual = batch * tokens * heads * dim;
        if random.one_in(24) { random.size(usual).min(1 << 18) } else { usual }
    };
    let lens = heads.map(&mut len);
    let [mut q, mut k] = lens.map(|len| numbers::<T>(random, len));
    let [of_q, of_k] = heads.map(|heads| Choice::<W>::new(random, heads, dim, batch * tokens));
    let with_k = !random.one_in(3);

    let mut whole = Norms::new().with_q(of_q.whole());
    let mut empty = Norms::new().with_q(of_q.norm(&[], &[], &[]));
    if with_k {
        whole = whole.with_k(of_k.whole());
        empty = empty.with_k(of_k.norm(&[], &[], &[]));
    }
    let step = arrays.step(&sizes);
    let [q_before, k_before] = [&q, &k].map(|memory| memory.slice().to_vec());

    // Prepared, on memory of its own.
    let (mut q_lent, mut k_lent) = (q_before.clone(), k_before.clone());
    let described = Call::new().with_q(ViewMut::<T>::new(&mut [], layout, heads[0])).with_k((
        View::<T>::new(&[], layout, heads[1]),
        ViewMut::<T>::new(&mut [], layout, heads[1]),
    ));
    let prepared = context.prepare_call(&step.with_norms(&empty), described).and_then(|prepared| {
        let mut layer = Layer::new().with_q(&mut q_lent).with_k(&k_before).with_k_out(&mut k_lent);
        for (choice, is_q) in [(&of_q, true), (&of_k, false)] {
            if !is_q && !with_k {
                continue;
            }
            if choice.kind != 2 {
                layer = if is_q {
                    layer.with_q_norm_weight(&choice.weight)
                } else {
                    layer.with_k_norm_weight(&choice.weight)
                };
            }
            if choice.kind == 4 {
                layer = if is_q {
                    layer.with_q_norm_bias(&choice.bias)
                } else {
                    layer.with_k_norm_bias(&choice.bias)
                };
            }
            if choice.given {
                layer = if is_q {
                    layer.with_q_norm_rstd(&choice.rstd)
                } else {
                    layer.with_k_norm_rstd(&choice.rstd)
                };
            }
        }
        prepared.apply(layer)
    });
    counts.count("PreparedCall::apply, norms", &prepared);

    let once = Call::new().with_q(ViewMut::new(q.slice_mut(), layout, heads[0])).with_k((
        View::new(&k_before, layout, heads[1]),
        ViewMut::new(k.slice_mut(), layout, heads[1]),
    ));
    let result = context.apply_call(&step.with_norms(&whole), once);
    counts.count("Context::apply_call, norms", &result);

    let same = |a: &[T], b: &[T]| a.iter().zip(b).all(|(a, b)| a.bits() == b.bits());
    for (memory, lent, before) in [(&q, &q_lent, &q_before), (&k, &k_lent, &k_before)] {
        if result.is_ok() {
            memory.check("Context::apply_call, norms", |_| true);
        } else {
            memory.check_unchanged("Context::apply_call, norms");
        }
        match &prepared {
            Ok(()) => {
                assert!(result.is_ok(), "accepted when it is prepared alone: {result:?}");
                assert!(same(lent, memory.slice()), "a prepared call has other bits");
            }
            Err(error) => assert!(same(lent, before), "refused, and has written: {error}"),
        }
    }
}
