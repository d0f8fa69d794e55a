//! Random calls that store k and v in a cache: its memory, its slots, and what may change.

use librope::{CacheShape, Context, KvCache, Layout, Pages, Slots, Step, Stored};

use crate::Counts;
use crate::calls::{
    Arrays, Shape, Sizes, Tensor, heads, shape, shape_of, sizes, unplaced, view, view_mut,
};
use crate::memory::{Bits, Memory};
use crate::random::Random;

/// The arrays of slots.
struct Places {
    kind: usize,
    wide: Vec<i64>,
    narrow: Vec<i32>,
    page_starts: Vec<i32>,
    width: usize,
    starts: Vec<i32>,
}

impl Places {
    /// For sequences of at most `longest` tokens, and `tokens` in all.
    fn new(
        random: &mut Random,
        cache: &Sizes,
        sequences: usize,
        [longest, tokens]: [usize; 2],
    ) -> Places {
        let (kind, size) = (random.below(5), cache.tokens.max(1));
        let last = match kind {
            4 => size.saturating_sub(longest),
            _ => 2 * size,
        };
        let mut starts: Vec<i32> =
            (0..random.size(sequences).min(4096)).map(|_| random.below(last + 1) as i32).collect();
        if random.one_in(24) {
            let start = random.position() as i32;
            starts.iter_mut().take(1).for_each(|first| *first = start);
        }
        let width = (last + longest).div_ceil(size).max(1);
        let page_starts = (0..random.size(sequences + 1).min(4097))
            .map(|s| {
                let at = s * width;
                random.size(at) as i32
            })
            .collect();
        let (need, below) = match kind {
            0 | 1 => (tokens, cache.batch * cache.tokens),
            _ => (sequences * width, cache.batch),
        };
        let len = random.size(need).min(1 << 14);
        let wide: Vec<i64> = (0..len)
            .map(|_| match random.below(64) {
                0 => random.position(),
                1..8 => -1,
                _ => random.below(below.clamp(1, 1 << 20)) as i64,
            })
            .collect();
        let narrow = wide.iter().map(|&number| number as i32).collect();
        Places { kind, wide, narrow, page_starts, width: random.size(width), starts }
    }

    fn slots(&self) -> Slots<'_> {
        match self.kind {
            0 => Slots::mapped(&self.wide),
            1 => Slots::mapped(&self.narrow),
            2 => Slots::paged(&self.narrow, self.width, &self.starts),
            3 => Slots::ragged(&self.narrow, &self.page_starts, &self.starts),
            _ => Slots::linear(&self.starts),
        }
    }

    /// The slots of all tokens of an accepted call.
    fn taken(&self, page_size: usize, lengths: &[usize]) -> Vec<usize> {
        let tokens = lengths.iter().sum();
        let numbers = |all: &mut dyn Iterator<Item = i64>| {
            all.take(tokens).filter_map(|slot| usize::try_from(slot).ok()).collect()
        };
        match self.kind {
            0 => return numbers(&mut self.wide.iter().copied()),
            1 => return numbers(&mut self.narrow.iter().map(|&slot| slot.into())),
            _ => (),
        }
        let mut taken = Vec::new();
        for (s, &length) in lengths.iter().enumerate() {
            for n in (self.starts[s] as usize..).take(length) {
                let entry = n / page_size;
                let page = match self.kind {
                    2 => i64::from(self.narrow[s * self.width + entry]),
                    3 => i64::from(self.narrow[self.page_starts[s] as usize + entry]),
                    _ => s as i64,
                };
                if let Ok(page) = usize::try_from(page) {
                    taken.push(page * page_size + n % page_size);
                }
            }
        }
        taken
    }
}

fn pages<T: Bits>(memory: &mut Memory<T>, shape: Shape) -> Pages<'_, T> {
    let pages = match shape.layout {
        Layout::Hnd => Pages::hnd(memory.slice_mut(), shape.heads),
        Layout::Strided(strides) => Pages::strided(memory.slice_mut(), shape.heads, strides),
        _ => Pages::nhd(memory.slice_mut(), shape.heads),
    };
    if shape.span { pages.span() } else { pages }
}

fn stored<T: Bits>(tensor: &mut Tensor<T>, only_read: bool) -> Stored<'_> {
    match (&tensor.input, &mut tensor.output) {
        (Some((from, shape)), Some(_)) if only_read => view(from, *shape).into(),
        (Some((from, shape)), Some((to, out))) => (view(from, *shape), view_mut(to, *out)).into(),
        (None, Some((memory, shape))) => view_mut(memory, *shape).into(),
        _ => ().into(),
    }
}

/// Only heads of these slots may have changed; none, if the call was refused.
fn check<T: Bits>(
    memory: &Memory<T>,
    shape: Shape,
    dim: usize,
    cache: &Sizes,
    taken: Option<&[usize]>,
) {
    const WHAT: &str = "Context::append, cache";
    let Some(taken) = taken.filter(|taken| !taken.is_empty()) else {
        return memory.check_unchanged(WHAT);
    };
    let offsets = heads(shape, cache, dim);
    let mut may_change = vec![false; shape.len];
    for slot in taken {
        for head in &offsets[slot * shape.heads..][..shape.heads] {
            may_change[*head..][..dim].fill(true);
        }
    }
    memory.check(WHAT, |i| may_change[i]);
}

/// The pages of a cache.
struct Form {
    cache: Sizes,
    k: Shape,
    k_dim: usize,
    v: Shape,
    v_dim: usize,
}

/// The same step prepared, for two layers: q in place, k and v only read.
fn prepared<Q: Bits, K: Bits, V: Bits>(
    context: &Context,
    random: &mut Random,
    counts: &mut Counts,
    (step, sizes): (&Step<'_>, &Sizes),
    [q, k, v]: [Shape; 3],
    form: &Form,
    taken: impl Fn() -> Option<Vec<usize>>,
) {
    const WHAT: &str = "PreparedAppend::apply";
    let memory = CacheShape::new(
        form.cache.batch,
        form.cache.tokens,
        unplaced::<K>(form.k),
        unplaced::<V>(form.v),
    );
    let memory = memory.with_v_head_dim(form.v_dim);
    let (of_q, of_k, of_v) = (unplaced::<Q>(q), unplaced::<K>(k), unplaced::<V>(v));
    let call = context.prepare_append(step, of_q, of_k, of_v, memory);
    counts.count("Context::prepare_append", &call);
    let Ok(call) = call else { return };
    for _layer in 0..2 {
        let mut turned = Memory::<Q>::new(random, q.len);
        let (key, value) = (Memory::<K>::new(random, k.len), Memory::<V>::new(random, v.len));
        let mut keys = Memory::<K>::new(random, form.k.len);
        let mut values = Memory::<V>::new(random, form.v.len);
        let pages = (keys.slice_mut(), values.slice_mut());
        let result = call.apply(turned.slice_mut(), key.slice(), value.slice(), pages);
        let taken = taken().filter(|_| result.is_ok());
        Tensor { input: None, output: Some((turned, q)) }.check(
            WHAT,
            result.is_ok(),
            context,
            sizes,
        );
        key.check_unchanged(WHAT);
        value.check_unchanged(WHAT);
        check(&keys, form.k, form.k_dim, &form.cache, taken.as_deref());
        check(&values, form.v, form.v_dim, &form.cache, taken.as_deref());
        counts.count(WHAT, &result);
    }
}

pub fn call<Q: Bits, K: Bits, V: Bits>(
    context: &Context,
    random: &mut Random,
    counts: &mut Counts,
) {
    let sizes = sizes(random);
    let info = context.info(0).expect("set 0 exists");
    let arrays = Arrays::new(random, context, &sizes);
    let (batch, tokens) = (sizes.batch.min(64), sizes.tokens.min(4096));
    let lengths: Vec<usize> = match &arrays.cu_seqlens {
        None => vec![tokens; batch],
        Some(cu) => cu.windows(2).map(|run| (run[1] - run[0]).max(0) as usize).collect(),
    };
    let mut q: Tensor<Q> = Tensor::new(random, context, &sizes);
    let mut k: Tensor<K> = Tensor::new(random, context, &sizes);

    let usual = 1 + random.below(3);
    let (pages_of, slots_of) = (lengths.len().max(1) * usual, tokens.min(64) + random.below(9) + 1);
    let cache = Sizes { batch: random.size(pages_of), tokens: random.size(slots_of) };
    let real = Sizes { batch: pages_of, tokens: slots_of };
    let longest = lengths.iter().copied().max().unwrap_or(0).min(4096);
    let places = Places::new(random, &real, lengths.len(), [longest, batch * tokens]);

    // A head of v has a width of its own, in the call and in the cache.
    let v_dim = if random.one_in(2) { info.head_dim } else { 1 + random.below(40) };
    let turns = random.one_in(64); // which is refused
    let of_v = shape_of(random, turns, v_dim, &sizes);
    let v: Memory<V> = Memory::new(random, of_v.len);
    let cached = |random: &mut Random, span: bool, dim: usize, like: Option<usize>| {
        let mut shape = shape_of(random, span, dim, &real);
        shape.layout = match shape.layout {
            Layout::Bhsd => Layout::Hnd,
            Layout::Bshd | Layout::Sbhd => Layout::Nhd,
            strided => strided,
        };
        if let Some(heads) = like.filter(|_| !random.one_in(24)) {
            if let Layout::Nhd | Layout::Hnd = shape.layout {
                shape.len = (shape.len / shape.heads.max(1)).saturating_mul(heads).min(1 << 18);
            }
            shape.heads = heads;
        }
        shape
    };
    let span = random.one_in(5);
    let k_dim = if span { info.rotary_dim } else { info.head_dim };
    let k_heads = k.output.as_ref().map(|(_, shape)| shape.heads);
    let (k_shape, v_shape) =
        (cached(random, span, k_dim, k_heads), cached(random, false, v_dim, Some(of_v.heads)));
    let (mut keys, mut values) =
        (Memory::<K>::new(random, k_shape.len), Memory::<V>::new(random, v_shape.len));

    let (with_k, with_v) = (k_heads.is_some() != random.one_in(16), !random.one_in(4));
    let only_read = random.one_in(2) && k.input.is_some();
    let mut place = KvCache::new(cache.batch, cache.tokens);
    if with_k {
        place = place.with_k(pages(&mut keys, k_shape));
    }
    if with_v {
        place = place.with_v(pages(&mut values, v_shape));
    }
    if v_dim != info.head_dim {
        place = place.with_v_head_dim(v_dim);
    }
    let step = arrays.step(&sizes).with_slots(places.slots());
    if let Some((_, of_k)) = k.output.as_ref().filter(|_| with_k && with_v && random.one_in(2)) {
        // Without a slice nothing but memory for rows refuses a length.
        if sizes.batch.saturating_mul(sizes.tokens) <= 4096 {
            let tensors = [shape(random, context, &sizes), *of_k, of_v];
            let form = Form { cache, k: k_shape, k_dim, v: v_shape, v_dim };
            let nothing = batch == 0 || tokens == 0;
            let taken = || (!nothing).then(|| places.taken(form.cache.tokens, &lengths));
            return prepared::<Q, K, V>(
                context,
                random,
                counts,
                (&step, &sizes),
                tensors,
                &form,
                taken,
            );
        }
    }
    let value: Stored<'_> = if with_v { view(&v, of_v).into() } else { ().into() };
    let result = context.append(&step, q.operand(), stored(&mut k, only_read), value, &mut place);

    let accepted = result.is_ok();
    q.check("Context::append", accepted, context, &sizes);
    k.check("Context::append", accepted && !only_read, context, &sizes);
    v.check_unchanged("Context::append, v");
    let nothing = batch == 0 || tokens == 0;
    let taken = (accepted && !nothing).then(|| places.taken(cache.tokens, &lengths));
    check(&keys, k_shape, k_dim, &cache, taken.as_deref().filter(|_| with_k));
    check(&values, v_shape, v_dim, &cache, taken.as_deref().filter(|_| with_v));
    counts.count("Context::append", &result);
}
