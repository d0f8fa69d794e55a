//! Random calls: tensors, positions and rows, most of them nearly right.

use std::sync::OnceLock;
use std::thread;

use librope::half::{bf16, f16};
use librope::{
    Context, CosSin, CosSinMut, Layout, Operand, Operation, Part, Pool, Positions, Result,
    Shape as Unplaced, Shard, Step, Strides, View, ViewMut,
};

use crate::Counts;
use crate::append;
use crate::memory::{Bits, Memory};
use crate::norms;
use crate::random::Random;

/// What one call of `step` may look at.
pub struct Sizes {
    pub batch: usize,
    pub tokens: usize,
}

/// A tensor's description, and how long its slice is.
#[derive(Clone, Copy)]
pub struct Shape {
    pub layout: Layout,
    pub heads: usize,
    pub span: bool,
    pub len: usize,
}

/// The offsets that the heads of a call begin at. For accepted calls, whose sizes are real.
pub fn heads(shape: Shape, sizes: &Sizes, dim: usize) -> Vec<usize> {
    let (b, t, h) = (sizes.batch, sizes.tokens, shape.heads);
    if b == 0 || t == 0 || h == 0 {
        return Vec::new(); // the others may be absurd
    }
    let strides = match shape.layout {
        Layout::Bshd | Layout::Nhd => Strides { batch: t * h * dim, token: h * dim, head: dim },
        Layout::Bhsd | Layout::Hnd => Strides { batch: h * t * dim, token: dim, head: t * dim },
        Layout::Sbhd => Strides { batch: h * dim, token: b * h * dim, head: dim },
        Layout::Strided(strides) => strides,
        other => panic!("no case for {other:?}"),
    };
    // A stride is not used where its dimension is 1, so it may be anything there.
    let at = |stride: usize, index: usize| if index == 0 { 0 } else { stride * index };
    let mut offsets = Vec::new();
    for i in 0..b {
        for j in 0..t {
            for k in 0..h {
                offsets.push(at(strides.batch, i) + at(strides.token, j) + at(strides.head, k));
            }
        }
    }
    offsets
}

pub fn shape(random: &mut Random, context: &Context, sizes: &Sizes) -> Shape {
    let info = context.info(0).expect("set 0 exists");
    let span = random.one_in(5);
    let dim = if span { info.rotary_dim } else { info.head_dim };
    shape_of(random, span, dim, sizes)
}

/// Of heads of `dim` channels.
pub fn shape_of(random: &mut Random, span: bool, dim: usize, sizes: &Sizes) -> Shape {
    let usual = 1 + random.below(5);
    let heads = random.size(usual);
    let (b, t) = (sizes.batch.min(64), sizes.tokens.min(4096));
    let (mut layout, mut len) =
        (random.pick(&[Layout::Bshd, Layout::Bhsd, Layout::Sbhd]), b * t * usual * dim);
    if random.one_in(2) {
        let gap = if random.one_in(2) { 0 } else { random.below(9) };
        let inner = dim + gap;
        let (head, token) =
            if random.one_in(2) { (inner, inner * usual + gap) } else { (inner * t + gap, inner) };
        let batch = head.max(token) * usual.max(t) + gap;
        let repeated = random.one_in(24);
        layout = Layout::Strided(Strides {
            batch: random.size(batch),
            token: random.size(token),
            head: if repeated { 0 } else { random.size(head) },
        });
        len = batch * b + token * t + head * usual + dim;
    }
    Shape { layout, heads, span, len: random.size(len).min(1 << 18) }
}

pub fn view<T: Bits>(memory: &Memory<T>, shape: Shape) -> View<'_, T> {
    let view = View::new(memory.slice(), shape.layout, shape.heads);
    if shape.span { view.span() } else { view }
}

pub fn view_mut<T: Bits>(memory: &mut Memory<T>, shape: Shape) -> ViewMut<'_, T> {
    let view = ViewMut::new(memory.slice_mut(), shape.layout, shape.heads);
    if shape.span { view.span() } else { view }
}

/// The shape as a prepared call takes it.
pub fn unplaced<T: Bits>(shape: Shape) -> Unplaced<T> {
    let unplaced = Unplaced::new(shape.layout, shape.heads);
    if shape.span { unplaced.span() } else { unplaced }
}

/// One tensor of a call: none, in place, or out of place.
pub struct Tensor<T> {
    pub input: Option<(Memory<T>, Shape)>,
    pub output: Option<(Memory<T>, Shape)>,
}

impl<T: Bits> Tensor<T> {
    pub fn new(random: &mut Random, context: &Context, sizes: &Sizes) -> Tensor<T> {
        let mut one = |like: Option<Shape>| {
            let mut shape = shape(random, context, sizes);
            if let Some(like) = like {
                shape.heads = if random.one_in(16) { shape.heads } else { like.heads };
                if random.one_in(2) {
                    (shape.layout, shape.len, shape.span) = (like.layout, like.len, like.span);
                }
            }
            (Memory::new(random, shape.len), shape)
        };
        let output = one(None);
        let input = one(Some(output.1));
        match random.below(5) {
            0 => Tensor { input: None, output: None },
            1 | 2 => Tensor { input: None, output: Some(output) },
            _ => Tensor { input: Some(input), output: Some(output) },
        }
    }

    pub fn operand(&mut self) -> Operand<'_> {
        match (&self.input, &mut self.output) {
            (Some((from, shape)), Some((to, out))) => {
                (view(from, *shape), view_mut(to, *out)).into()
            }
            (None, Some((memory, shape))) => view_mut(memory, *shape).into(),
            _ => ().into(),
        }
    }

    pub fn check(&self, what: &str, accepted: bool, context: &Context, sizes: &Sizes) {
        if let Some((memory, _)) = &self.input {
            memory.check_unchanged(what);
        }
        let Some((memory, shape)) = &self.output else { return };
        if !accepted {
            return memory.check_unchanged(what);
        }
        let info = context.info(0).expect("set 0 exists");
        let dim = if shape.span { info.rotary_dim } else { info.head_dim };
        // Channels outside the span are written if both tensors hold whole heads.
        let copied = self.input.as_ref().is_some_and(|(_, input)| !input.span && !shape.span);
        let (first, count) = match (shape.span, copied) {
            (true, _) | (false, true) => (0, dim),
            (false, false) => (info.rotary_offset, info.rotary_dim),
        };
        let mut may_change = vec![false; shape.len];
        for head in heads(*shape, sizes, dim) {
            may_change[head + first..][..count].fill(true);
        }
        memory.check(what, |i| may_change[i]);
    }
}

/// The arrays that a step borrows.
pub struct Arrays {
    narrow: Vec<i32>,
    wide: Vec<i64>,
    float: Vec<f32>,
    pub cu_seqlens: Option<Vec<i32>>,
    freq_sets: Option<Vec<i32>>,
    kind: usize,
    strides: [usize; 3],
    operation: Operation,
    pool: bool,
    batch_repeat: usize,
    shard: Option<Shard>,
    from: Option<usize>, // the kind of the positions before a move
    from_freq_sets: bool,
}

impl Arrays {
    pub fn new(random: &mut Random, context: &Context, sizes: &Sizes) -> Arrays {
        let info = context.info(0).expect("set 0 exists");
        let (batch, tokens, axes) = (sizes.batch.min(64), sizes.tokens.min(4096), info.axes);
        let cu_seqlens = random.one_in(6).then(|| {
            let sequences = random.below(5);
            let mut cu: Vec<i32> =
                (0..sequences).map(|_| random.below(tokens + 1) as i32).collect();
            cu.push(0);
            cu.push(random.size(tokens) as i32);
            if !random.one_in(8) {
                cu.sort_unstable();
            }
            cu.truncate(random.size(cu.len()));
            cu
        });
        let sequences = cu_seqlens.as_ref().map_or(batch, |cu: &Vec<i32>| cu.len().max(1) - 1);
        let freq_sets = (info.freq_sets > 1 || random.one_in(24)).then(|| {
            let len = random.size(sequences).min(4096);
            let mut set = || {
                let usual = random.below(info.freq_sets);
                random.size(usual) as i32
            };
            (0..len).map(|_| set()).collect()
        });
        let operation = random.pick(&[
            Operation::Forward,
            Operation::Forward,
            Operation::Backward,
            Operation::Inverse,
            Operation::Shift,
        ]);
        // Others are mostly refused.
        let shift = operation == Operation::Shift && !random.one_in(8);
        let kind = if shift { 7 } else { random.below(9) };
        let strides = match random.below(3) {
            0 => [batch * tokens, tokens, 1],
            1 => [1, tokens * axes, axes],
            _ => [0, 0, 1],
        };
        let need = match kind {
            0 | 7 => 0,
            1 | 2 => sequences,
            3 => tokens,
            4 => batch * tokens,
            _ => axes * batch * tokens,
        };
        let len = random.size(need).min(1 << 14);
        let wide: Vec<i64> = (0..len).map(|_| random.position()).collect();
        Arrays {
            narrow: wide.iter().map(|&id| id as i32).collect(),
            float: wide.iter().map(|&id| id as f32 / 8.0).collect(),
            wide,
            cu_seqlens,
            freq_sets,
            kind,
            strides: strides.map(|stride| random.size(stride)),
            operation,
            pool: random.one_in(6),
            batch_repeat: if random.one_in(10) { random.size(2) } else { 1 },
            shard: (kind <= 2 && random.one_in(4) || random.one_in(30)).then(|| shard(random)),
            from: random.one_in(8).then(|| if random.one_in(2) { kind } else { random.below(9) }),
            from_freq_sets: random.one_in(2),
        }
    }

    fn positions(&self, kind: usize) -> Positions<'_> {
        let offset = self.wide.first().copied().unwrap_or(-5);
        let [axis, batch, token] = self.strides;
        match kind {
            0 => Positions::Offset(offset),
            1 => Positions::seq_offsets(&self.narrow),
            2 => Positions::seq_offsets(&self.wide),
            3 => Positions::tokens(&self.wide),
            4 => Positions::batch_tokens(&self.narrow),
            5 => Positions::axes_batch_tokens(&self.wide),
            6 => Positions::batch_tokens_axes(&self.float),
            7 => Positions::Same(offset),
            _ => Positions::Strided { ids: (&self.narrow).into(), axis, batch, token },
        }
    }

    fn finish<'a>(&'a self, mut step: Step<'a>) -> Step<'a> {
        static POOL: OnceLock<Pool> = OnceLock::new();
        step = step.with_operation(self.operation);
        if let Some(cu_seqlens) = &self.cu_seqlens {
            step = step.with_cu_seqlens(cu_seqlens);
        }
        if let Some(freq_sets) = &self.freq_sets {
            step = step.with_freq_sets(freq_sets);
        }
        if self.batch_repeat != 1 {
            step = step.with_batch_repeat(self.batch_repeat);
        }
        if let Some(shard) = self.shard {
            step = step.with_shard(shard);
        }
        if let Some(kind) = self.from {
            step = step.rerotating(self.positions(kind));
        }
        if let (Some(sets), true, true) =
            (&self.freq_sets, self.from_freq_sets, self.from.is_some())
        {
            step = step.from_freq_sets(sets);
        }
        if self.pool {
            let pool = POOL.get_or_init(|| Pool::new(2).expect("two threads"));
            step = step.with_runner(pool.runner());
        }
        step
    }

    pub fn step(&self, sizes: &Sizes) -> Step<'_> {
        self.finish(Step::new(sizes.batch, sizes.tokens, self.positions(self.kind)))
    }
}

/// One that mostly exists, and that mostly divides few tokens.
fn shard(random: &mut Random) -> Shard {
    let world = random.below(3) + 1;
    let rank = if random.one_in(16) { random.size(world) } else { random.below(world) };
    let one = match random.below(4) {
        0 => Shard::contiguous(rank, world),
        1 => Shard::zigzag(rank, world),
        2 => Shard::striped(rank, world, random.size(1)),
        _ => Shard::heads(rank, world),
    };
    let one = if random.one_in(6) { one.per_document() } else { one };
    if random.one_in(6) { one.then(shard(random)) } else { one }
}

/// The distance of rows: 0 where they follow each other.
fn row_stride(random: &mut Random, width: usize) -> usize {
    let usual = width + random.below(9);
    if random.one_in(3) { random.size(usual) } else { 0 }
}

/// Rows of cos and sin to read: without a border, which is the sanitizer's business.
struct Rows<T> {
    cos: Vec<T>,
    sin: Vec<T>,
    format: usize,
    stride: usize,
    shared: bool,
}

impl<T: Bits> Rows<T> {
    fn new(random: &mut Random, context: &Context, sizes: &Sizes) -> Rows<T> {
        let format = random.below(6);
        let width = if format == 2 { context.pairs() } else { 2 * context.pairs() };
        let stride = row_stride(random, width);
        let shared = random.one_in(4);
        let rows = if shared { 1 } else { sizes.batch.min(64) } * sizes.tokens.min(4096);
        let len = random.size(rows * stride.min(1 << 12).max(width)).min(1 << 18);
        let mut values = || (0..len).map(|_| T::from_random(random.next() >> 16)).collect();
        Rows { cos: values(), sin: values(), format, stride, shared }
    }

    fn rows(&self) -> CosSin<'_> {
        let rows = match self.format {
            0 => CosSin::packed(&self.cos),
            1 => CosSin::packed_sin_first(&self.cos),
            2 => CosSin::split(&self.cos, &self.sin),
            3 => CosSin::full_halves(&self.cos, &self.sin),
            4 => CosSin::full_interleaved(&self.cos, &self.sin),
            _ => CosSin::complex(&self.cos),
        };
        let rows = if self.stride == 0 { rows } else { rows.with_stride(self.stride) };
        if self.shared { rows.shared() } else { rows }
    }
}

pub fn sizes(random: &mut Random) -> Sizes {
    // Long enough for a runner, sometimes.
    let usual = if random.one_in(48) { 100 + random.below(200) } else { random.below(9) };
    let batch = if random.one_in(2) { 1 } else { random.below(4) };
    Sizes { batch: random.size(batch), tokens: random.size(usual) }
}

fn apply<Q: Bits, K: Bits>(context: &Context, random: &mut Random, counts: &mut Counts) {
    let sizes = sizes(random);
    let arrays = Arrays::new(random, context, &sizes);
    let mut q: Tensor<Q> = Tensor::new(random, context, &sizes);
    let mut k: Tensor<K> = Tensor::new(random, context, &sizes);
    let (kind, result) = if random.one_in(4) {
        let rows: Rows<K> = Rows::new(random, context, &sizes);
        let mut step = Step::with_rows(sizes.batch, sizes.tokens, rows.rows());
        if random.one_in(2) {
            step = step.with_operation(arrays.operation);
        }
        ("Context::apply, rows", context.apply(&step, q.operand(), k.operand()))
    } else {
        ("Context::apply", context.apply(&arrays.step(&sizes), q.operand(), k.operand()))
    };
    q.check(kind, result.is_ok(), context, &sizes);
    k.check(kind, result.is_ok(), context, &sizes);
    counts.count(kind, &result);
}

fn apply_thd<T: Bits>(context: &Context, random: &mut Random, counts: &mut Counts) {
    let tokens = sizes(random).tokens.min(300);
    let positions: Vec<i64> = (0..tokens).map(|_| random.position()).collect();
    let mut one = |most: usize| {
        let usual = random.below(most);
        let len = random.size(tokens * usual * context.head_dim()).min(1 << 19);
        (Memory::<T>::new(random, len), random.size(usual))
    };
    let ((mut q, q_heads), (mut k, k_heads)) = (one(6), one(3));
    let result = context.apply_thd(&positions, q.slice_mut(), q_heads, k.slice_mut(), k_heads);
    q.check("Context::apply_thd", |_| result.is_ok());
    k.check("Context::apply_thd", |_| result.is_ok());
    counts.count("Context::apply_thd", &result);
}

fn apply_packed<T: Bits>(context: &Context, random: &mut Random, counts: &mut Counts) {
    let sizes = sizes(random);
    let arrays = Arrays::new(random, context, &sizes);
    let dim = context.head_dim();
    let (q_heads, k_heads) = (1 + random.below(4), 1 + random.below(2));
    let row = (q_heads + 2 * k_heads) * dim;
    let rows = sizes.batch.min(64) * sizes.tokens.min(4096);
    let len = random.size(rows * row).min(1 << 20);
    let mut memory: Memory<T> = Memory::new(random, len);
    let batch = random.size(sizes.tokens.min(4096) * row);
    let strides = Strides { batch, token: random.size(row), head: random.size(dim) };
    let q = Part::new(random.size(0), q_heads, strides);
    let k = Part::new(random.size(q_heads * dim), random.size(k_heads), strides);
    let result = context.apply_packed(&arrays.step(&sizes), memory.slice_mut(), q, k);
    if result.is_ok() {
        let mut may_change = vec![false; memory.slice().len()];
        for part in [q, k] {
            let (layout, heads_of) = (Layout::Strided(part.strides), part.heads);
            let shape = Shape { layout, heads: heads_of, span: false, len: 0 };
            for head in heads(shape, &sizes, dim) {
                may_change[part.offset + head..][..dim].fill(true);
            }
        }
        memory.check("Context::apply_packed", |i| may_change[i]);
    } else {
        memory.check_unchanged("Context::apply_packed");
    }
    counts.count("Context::apply_packed", &result);
}

fn apply_to_vec<T: Bits>(context: &Context, random: &mut Random, counts: &mut Counts) {
    let sizes = sizes(random);
    let arrays = Arrays::new(random, context, &sizes);
    let mut shape = shape(random, context, &sizes);
    shape.heads = shape.heads.min(1 << 10); // one head repeated is a real result, of real size
    let input: Memory<T> = Memory::new(random, shape.len);
    let layout = random.pick(&[Layout::Bshd, Layout::Bhsd, Layout::Sbhd]);
    let step = arrays.step(&sizes);
    let result = context.apply_to_vec(&step, view(&input, shape), layout);
    input.check_unchanged("Context::apply_to_vec");
    counts.count("Context::apply_to_vec", &result);
    let Ok(got) = result else { return };
    // The same into memory that was something else before: every element has been written.
    let mut want: Memory<T> = Memory::new(random, got.len());
    let out = Shape { layout, len: got.len(), ..shape };
    context.apply(&step, (view(&input, shape), view_mut(&mut want, out)), ()).expect("as before");
    let differs = got.iter().zip(want.slice()).position(|(g, w)| g.bits() != w.bits());
    assert_eq!(differs, None, "apply_to_vec left an element as it was");
}

/// q in place and k out of place, for two layers.
fn prepared<Q: Bits, K: Bits>(context: &Context, random: &mut Random, counts: &mut Counts) {
    let Sizes { batch, tokens } = sizes(random);
    // Without a slice nothing but memory for rows refuses a length.
    let sizes = Sizes { batch: batch.min(8), tokens: tokens.min(300) };
    let arrays = Arrays::new(random, context, &sizes);
    let (q, k) = (shape(random, context, &sizes), shape(random, context, &sizes));
    let mut k_out = shape(random, context, &sizes);
    if !random.one_in(16) {
        k_out.heads = k.heads;
    }
    let step = arrays.step(&sizes);
    let pair = (unplaced::<K>(k), unplaced::<K>(k_out));
    let call = context.prepare(&step, unplaced::<Q>(q), pair);
    counts.count("Context::prepare", &call);
    let Ok(call) = call else { return };
    for _layer in 0..2 {
        let mut in_place = Memory::<Q>::new(random, q.len);
        let (input, mut output) = (Memory::<K>::new(random, k.len), Memory::new(random, k_out.len));
        let result = call.apply(in_place.slice_mut(), (input.slice(), output.slice_mut()));
        let (accepted, what) = (result.is_ok(), "Prepared::apply");
        let of_q = Tensor { input: None, output: Some((in_place, q)) };
        let of_k = Tensor { input: Some((input, k)), output: Some((output, k_out)) };
        of_q.check(what, accepted, context, &sizes);
        of_k.check(what, accepted, context, &sizes);
        counts.count(what, &result);
    }
}

fn fill<T: Bits>(context: &Context, random: &mut Random, counts: &mut Counts) {
    let sizes = sizes(random);
    let arrays = Arrays::new(random, context, &sizes);
    let format = random.below(9);
    let half = format == 2 || format == 7;
    let width = if half { context.pairs() } else { 2 * context.pairs() };
    let stride = row_stride(random, width);
    let rows = sizes.batch.min(64) * sizes.tokens.min(4096);
    let len = random.size(rows * stride.min(1 << 12).max(width)).min(1 << 19);
    let (mut one, mut two) = (Memory::<T>::new(random, len), Memory::<T>::new(random, len));
    let mut angles = Memory::<f32>::new(random, len);
    let (a, b) = (one.slice_mut(), two.slice_mut());
    let out = match format {
        0 => CosSinMut::packed(a),
        1 => CosSinMut::packed_sin_first(a),
        2 => CosSinMut::split(a, b),
        3 => CosSinMut::full_halves(a, b),
        4 => CosSinMut::full_interleaved(a, b),
        5 => CosSinMut::complex(a),
        6 => CosSinMut::sinusoidal(a),
        7 => CosSinMut::angles(angles.slice_mut()),
        _ => CosSinMut::angles_full(angles.slice_mut()),
    };
    let out = if stride == 0 { out } else { out.with_stride(stride) };
    let result: Result<()> = context.fill_cos_sin(&arrays.step(&sizes), out);
    let step = if stride == 0 { width } else { stride };
    // One row may have any stride.
    let written = |i: usize| result.is_ok() && (i < width || i % step < width);
    one.check("Context::fill_cos_sin", written);
    two.check("Context::fill_cos_sin", written);
    angles.check("Context::fill_cos_sin", written);
    counts.count("Context::fill_cos_sin", &result);
}

pub fn case(context: &Context, random: &mut Random, counts: &mut Counts) {
    match random.below(37) {
        0..=2 => apply::<f32, f32>(context, random, counts),
        3 => apply::<f32, f16>(context, random, counts),
        4..=5 => apply::<f16, f16>(context, random, counts),
        6..=7 => apply::<bf16, bf16>(context, random, counts),
        8 => apply::<bf16, f32>(context, random, counts),
        9 => apply_thd::<f32>(context, random, counts),
        10 => apply_thd::<f16>(context, random, counts),
        11 => apply_thd::<bf16>(context, random, counts),
        12..=13 => apply_packed::<f32>(context, random, counts),
        14 => apply_packed::<bf16>(context, random, counts),
        15..=16 => apply_to_vec::<f32>(context, random, counts),
        17 => apply_to_vec::<f16>(context, random, counts),
        18 => apply_to_vec::<bf16>(context, random, counts),
        19..=21 => fill::<f32>(context, random, counts),
        22 => fill::<f16>(context, random, counts),
        23 => fill::<bf16>(context, random, counts),
        24..=25 => prepared::<f32, f32>(context, random, counts),
        26 => prepared::<bf16, bf16>(context, random, counts),
        27 => prepared::<f16, f32>(context, random, counts),
        28..=29 => append::call::<f32, f32, f32>(context, random, counts),
        30..=31 => append::call::<f32, bf16, bf16>(context, random, counts),
        32 => append::call::<f16, f16, f32>(context, random, counts),
        33..=34 => norms::call::<bf16, bf16>(context, random, counts),
        35 => norms::call::<f32, bf16>(context, random, counts),
        _ => norms::call::<f16, f32>(context, random, counts),
    }
}

/// One context for several threads, each with its own calls.
pub fn on_threads(context: &Context, random: &mut Random, counts: &mut Counts) {
    let seeds = [random.next(), random.next(), random.next()];
    let all: Vec<Counts> = thread::scope(|scope| {
        let threads = seeds.map(|seed| {
            scope.spawn(move || {
                let (mut random, mut counts) = (Random::new(seed), Counts::default());
                for _ in 0..8 {
                    case(context, &mut random, &mut counts);
                }
                counts
            })
        });
        threads.map(|thread| thread.join().expect("a case passed")).into_iter().collect()
    });
    for one in all {
        counts.add(one);
    }
}
