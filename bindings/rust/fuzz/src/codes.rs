//! Random calls whose outputs and caches are in 8 bits: slices, shapes, scales and slots, most of them right.
//! A call that is refused has written nothing; one that is not has written the codes and scales of the
//! definition, computed here, and nothing else; and a prepared call takes and refuses the same.

use std::fmt::Debug;
use std::sync::OnceLock;

use librope::half::{bf16, f16};
use librope::{
    Call, Config, Context, F8E4M3, F8E5M2, KvCache, Layer, Layout, OutputElement, Pages, Pairing,
    Positions, Q80, Scale, Slots, Step, Strides, View, ViewMut,
};

use crate::Counts;
use crate::memory::Bits;
use crate::random::Random;

/// Codes and blocks by their definition in `rope.h`.
pub trait Code: OutputElement + PartialEq + Debug {
    const CHANNELS: usize = 1;
    const LARGEST: f32 = 127.0;
    fn random(random: &mut Random) -> Self;
    /// What is stored for a group of channels.
    fn store(x: &[f32], scale: f32) -> Vec<Self>;
    /// What a stored group stands for.
    fn load(codes: &[Self], scale: f32) -> Vec<f32>;
}

impl Code for i8 {
    fn random(random: &mut Random) -> i8 {
        (random.below(255) as i32 - 127) as i8
    }
    fn store(x: &[f32], scale: f32) -> Vec<i8> {
        let one = 1.0 / scale;
        x.iter().map(|x| (x * one).round_ties_even().clamp(-128.0, 127.0) as i8).collect()
    }
    fn load(codes: &[i8], scale: f32) -> Vec<f32> {
        codes.iter().map(|&code| f32::from(code) * scale).collect()
    }
}

/// A code in floating point: `FRACTION` bits, and an exponent with this bias.
fn float8<const FRACTION: i32, const BIAS: i32>(x: f32, largest: f32) -> u8 {
    let size = f64::from(x.abs().min(largest));
    let exponent = if size == 0.0 { 1 - BIAS } else { size.log2().floor() as i32 };
    let exponent = exponent.max(1 - BIAS);
    let steps = (size * 2f64.powi(FRACTION - exponent)).round_ties_even() as i32;
    (u8::from(x.is_sign_negative()) << 7) | (((exponent + BIAS - 1) << FRACTION) + steps) as u8
}

fn value_of<const FRACTION: i32, const BIAS: i32>(code: u8) -> f32 {
    let exponent = i32::from(code & 0x7f) >> FRACTION;
    let fraction = i32::from(code) & ((1 << FRACTION) - 1);
    let fraction = if exponent == 0 { fraction } else { fraction + (1 << FRACTION) };
    let size = fraction as f32 * 2f32.powi(exponent.max(1) - BIAS - FRACTION);
    if code & 0x80 == 0 { size } else { -size }
}

macro_rules! float8 {
    ($name:ident $fraction:literal $bias:literal $largest:literal $end:literal) => {
        impl Code for $name {
            const LARGEST: f32 = $largest;
            fn random(random: &mut Random) -> $name {
                $name(random.below($end) as u8)
            }
            fn store(x: &[f32], scale: f32) -> Vec<$name> {
                let one = 1.0 / scale;
                x.iter().map(|x| $name(float8::<$fraction, $bias>(x * one, $largest))).collect()
            }
            fn load(codes: &[$name], scale: f32) -> Vec<f32> {
                codes.iter().map(|code| value_of::<$fraction, $bias>(code.0) * scale).collect()
            }
        }
    };
}

float8!(F8E4M3 3 7 448.0 0x7f);
float8!(F8E5M2 2 15 57344.0 0x7c);

impl Code for Q80 {
    const CHANNELS: usize = Q80::CHANNELS;
    fn random(random: &mut Random) -> Q80 {
        let codes = std::array::from_fn(|_| i8::random(random));
        Q80 { d: f16::from_f32(random.below(100) as f32 / 100.0), codes }
    }
    /// `quantize_row_q8_0_ref` of ggml.
    fn store(x: &[f32], _: f32) -> Vec<Q80> {
        let block = |x: &[f32]| {
            let d = largest(x) / 127.0;
            let one = if d == 0.0 { 0.0 } else { 1.0 / d };
            let mut codes = [0; Q80::CHANNELS];
            for (code, x) in codes.iter_mut().zip(x) {
                *code = (x * one).round() as i8;
            }
            Q80 { d: f16::from_f32(d), codes }
        };
        x.chunks(Q80::CHANNELS).map(block).collect()
    }
    fn load(codes: &[Q80], _: f32) -> Vec<f32> {
        let block = |block: &Q80| block.codes.map(|code| f32::from(code) * block.d.to_f32());
        codes.iter().flat_map(block).collect()
    }
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |most, x| most.max(x.abs()))
}

/// Elements of memory before and behind each slice.
const FENCE: usize = 40;

/// An array between fences: what it held, what is in it now, and what a call must make of it.
struct Image<T> {
    before: Vec<T>,
    now: Vec<T>,
    want: Vec<T>,
}

impl<T: Copy + PartialEq + Debug> Image<T> {
    fn new(len: usize, mut value: impl FnMut() -> T) -> Image<T> {
        let now: Vec<T> = (0..len + 2 * FENCE).map(|_| value()).collect();
        Image { before: now.clone(), want: now.clone(), now }
    }

    fn slice(&self) -> &[T] {
        &self.now[FENCE..self.now.len() - FENCE]
    }

    fn slice_mut(&mut self) -> &mut [T] {
        let end = self.now.len() - FENCE;
        &mut self.now[FENCE..end]
    }

    /// Outside of the slice, by a call that must be refused, it is ignored.
    fn put(&mut self, at: usize, values: &[T]) {
        if at + values.len() <= self.now.len() - 2 * FENCE {
            self.want[FENCE + at..][..values.len()].copy_from_slice(values);
        }
    }

    fn check(&self, what: &str, accepted: bool) {
        let want = if accepted { &self.want } else { &self.before };
        if let Some(i) = (0..want.len()).find(|&i| self.now[i] != want[i]) {
            let (at, len) = (i as i64 - FENCE as i64, self.slice().len());
            panic!(
                "{what} (accepted: {accepted}): element {at} of {len} is {:?}, and must be {:?}",
                self.now[i], want[i]
            );
        }
    }

    fn restore(&mut self) {
        self.now.clone_from(&self.before);
    }
}

/// How the scales of a target lie.
#[derive(Clone, Copy)]
enum Scales {
    None,
    One(f32),
    Array {
        e8m0: bool,
        computed: bool,
        group: usize,
        power_of_two: bool,
        least: f64,
        strides: Option<Strides>,
    },
}

/// An output, or the memory of a cache.
struct Target<T> {
    layout: Layout,
    heads: usize,
    counts: [usize; 2], // batch rows and tokens, or pages and slots
    dim: usize,
    strides: Strides,
    codes: Image<T>,
    scales: Scales,
    floats: Image<f32>,
    exponents: Image<u8>,
}

impl<T: Code> Target<T> {
    fn new(
        random: &mut Random,
        counts: [usize; 2],
        heads: usize,
        dim: usize,
        layouts: &[Layout],
    ) -> Target<T> {
        let [outer, inner] = counts;
        let mut layout = random.pick(layouts);
        let mut strides = match layout {
            Layout::Bshd | Layout::Nhd => {
                Strides { batch: inner * heads * dim, token: heads * dim, head: dim }
            }
            Layout::Sbhd => Strides { batch: heads * dim, token: outer * heads * dim, head: dim },
            _ => Strides { batch: heads * inner * dim, token: dim, head: inner * dim },
        };
        let mut len = outer * inner * heads * dim;
        if random.one_in(2) {
            strides.head = dim + T::CHANNELS * random.below(3);
            strides.token = heads * strides.head + T::CHANNELS * random.below(2);
            strides.batch = inner * strides.token + T::CHANNELS * random.below(2);
            if random.one_in(10) {
                let token = strides.token;
                strides.token = random.pick(&[token + 1, token - 1, token - dim, 0]);
            }
            layout = Layout::Strided(strides);
            len = (outer - 1) * strides.batch
                + (inner - 1) * strides.token
                + (heads - 1) * strides.head
                + dim;
        }
        let len = nearly(random, len / T::CHANNELS);
        let codes = Image::new(len, || T::random(random));
        let (floats, exponents) = (Image::new(0, || 0.0), Image::new(0, || 0));
        let mut target = Target {
            layout,
            heads,
            counts,
            dim,
            strides,
            codes,
            scales: Scales::None,
            floats,
            exponents,
        };
        if (T::CHANNELS == 1) != random.one_in(25) {
            target.set_scales(random); // which blocks do not have
        }
        target
    }

    fn set_scales(&mut self, random: &mut Random) {
        if random.one_in(3) {
            let odd = random.one_in(8).then(|| random.pick(&[0.0, -1.0, f32::NAN, f32::INFINITY]));
            self.scales = Scales::One(odd.unwrap_or(0.01 + random.below(100) as f32 / 100.0));
            return;
        }
        let (computed, e8m0) = (random.one_in(2), random.one_in(3));
        let odd = if random.one_in(4) { 7 } else { 8 };
        let group = random.pick(&[0, 0, 16, self.dim, odd]);
        let (groups, [outer, inner]) = (self.dim.checked_div(group).unwrap_or(1), self.counts);
        let mut len = outer * inner * self.heads * groups;
        let strides = random.one_in(4).then(|| {
            let head = groups + random.below(3);
            let token = self.heads * head + random.below(3);
            let shared = random.one_in(6); // by all tokens: if they are given
            let (batch, token) = if shared { (0, 0) } else { (inner * token, token) };
            len = (outer - 1) * batch + (inner - 1) * token + (self.heads - 1) * head + groups;
            Strides { batch, token, head }
        });
        let len = nearly(random, len);
        self.floats = Image::new(len, || 0.01 + random.below(100) as f32 / 100.0);
        self.exponents = Image::new(len, || 118 + random.below(10) as u8);
        let power_of_two = computed && (e8m0 || random.one_in(3));
        let least = if computed && random.one_in(4) { 0.05 } else { 0.0 };
        self.scales = Scales::Array { e8m0, computed, group, power_of_two, least, strides };
    }

    /// The codes and their scales, as a call has them; without slices, as one is prepared.
    fn parts(&mut self, empty: bool) -> (&mut [T], Option<Scale<'_>>) {
        let codes = if empty { &mut [] } else { self.codes.slice_mut() };
        let scale = match self.scales {
            Scales::None => None,
            Scales::One(value) => Some(Scale::given(value)),
            Scales::Array { e8m0, computed, group, power_of_two, least, strides } => {
                let floats = if empty { &mut [] } else { self.floats.slice_mut() };
                let exponents = if empty { &mut [] } else { self.exponents.slice_mut() };
                let mut scale = match (e8m0, computed) {
                    (false, false) => Scale::given_array(floats),
                    (false, true) => Scale::computed(floats),
                    (true, false) => Scale::given_e8m0(exponents),
                    (true, true) => Scale::computed_e8m0(exponents),
                };
                if group != 0 {
                    scale = scale.with_group(group as u16);
                }
                if power_of_two {
                    scale = scale.with_power_of_two();
                }
                if least != 0.0 {
                    scale = scale.with_min_scale(least);
                }
                Some(match strides {
                    Some(strides) => scale.with_strides(strides),
                    None => scale,
                })
            }
        };
        (codes, scale)
    }

    fn view(&mut self, empty: bool) -> ViewMut<'_, T> {
        let (layout, heads) = (self.layout, self.heads);
        let (codes, scale) = self.parts(empty);
        let view = ViewMut::new(codes, layout, heads);
        match scale {
            Some(scale) => view.with_scale(scale),
            None => view,
        }
    }

    fn pages(&mut self, empty: bool) -> Pages<'_, T> {
        let (layout, heads) = (self.layout, self.heads);
        let (codes, scale) = self.parts(empty);
        let pages = match layout {
            Layout::Hnd => Pages::hnd(codes, heads),
            Layout::Strided(strides) => Pages::strided(codes, heads, strides),
            _ => Pages::nhd(codes, heads),
        };
        match scale {
            Some(scale) => pages.with_scale(scale),
            None => pages,
        }
    }

    /// The groups of a head: their first channel, how many they are, and where their scale is.
    fn groups(&self, outer: usize, inner: usize, head: usize) -> Vec<(usize, usize, usize)> {
        let at = outer * self.strides.batch + inner * self.strides.token + head * self.strides.head;
        let Scales::Array { group, strides, .. } = self.scales else {
            return vec![(at, self.dim, 0)];
        };
        let groups = self.dim.checked_div(group).unwrap_or(1);
        let first = match (strides, self.layout) {
            (Some(s), _) => outer * s.batch + inner * s.token + head * s.head,
            (None, Layout::Bhsd | Layout::Hnd) => {
                ((outer * self.heads + head) * self.counts[1] + inner) * groups
            }
            (None, Layout::Sbhd) => ((inner * self.counts[0] + outer) * self.heads + head) * groups,
            (None, _) => ((outer * self.counts[1] + inner) * self.heads + head) * groups,
        };
        let channels = self.dim / groups;
        (0..groups).map(|g| (at + g * channels, channels, first + g)).collect()
    }

    /// The codes and scales of a head of x, where a call must write them.
    fn store(&mut self, [outer, inner, head]: [usize; 3], mut x: &[f32]) {
        for (at, channels, scale_at) in self.groups(outer, inner, head) {
            let (group, rest) = x.split_at(channels);
            x = rest;
            let scale = self.scale_for(scale_at, group);
            self.codes.put(at / T::CHANNELS, &T::store(group, scale));
        }
    }

    /// The scale of a group: the one that is given, or that which a call must compute and write.
    fn scale_for(&mut self, at: usize, group: &[f32]) -> f32 {
        match self.scales {
            Scales::None => 1.0, // of blocks, or of codes that are refused
            Scales::One(value) => value,
            Scales::Array { computed: true, e8m0, power_of_two, least, .. } => {
                let least = if least == 0.0 { f32::MIN_POSITIVE } else { least as f32 };
                let mut scale = (largest(group) / T::LARGEST).max(least);
                if power_of_two {
                    scale = 2f64.powf(f64::from(scale).log2().ceil()) as f32;
                }
                if e8m0 {
                    self.exponents.put(at, &[(scale.log2() + 127.0) as u8]);
                } else {
                    self.floats.put(at, &[scale]);
                }
                scale
            }
            Scales::Array { .. } => self.scale_at(at).unwrap_or(1.0),
        }
    }

    fn scale_at(&self, at: usize) -> Option<f32> {
        match self.scales {
            Scales::None => Some(1.0),
            Scales::One(value) => Some(value),
            Scales::Array { e8m0: false, .. } => self.floats.slice().get(at).copied(),
            Scales::Array { .. } => {
                self.exponents.slice().get(at).map(|&e| 2f32.powi(i32::from(e) - 127))
            }
        }
    }

    fn load(&self, [outer, inner, head]: [usize; 3]) -> Vec<f32> {
        let group = |(at, channels, scale)| {
            let codes = &self.codes.slice()[at / T::CHANNELS..][..channels / T::CHANNELS];
            T::load(codes, self.scale_at(scale).expect("a scale of an accepted call"))
        };
        self.groups(outer, inner, head).into_iter().flat_map(group).collect()
    }

    fn check(&self, what: &str, accepted: bool) {
        self.codes.check(what, accepted);
        self.floats.check(what, accepted);
        self.exponents.check(what, accepted);
    }

    fn restore(&mut self) {
        self.codes.restore();
        self.floats.restore();
        self.exponents.restore();
    }

    /// What a call must have made of it is what it was before the next one.
    fn settle(&mut self) {
        self.codes.before.clone_from(&self.codes.want);
        self.floats.before.clone_from(&self.floats.want);
        self.exponents.before.clone_from(&self.exponents.want);
        self.restore();
    }
}

/// A length, or now and then one that is off by one.
fn nearly(random: &mut Random, len: usize) -> usize {
    if random.one_in(15) { (len + random.below(3)).saturating_sub(1) } else { len }
}

/// Different slots below n, now and then nowhere, too few, or one that does not exist.
fn some_slots(random: &mut Random, tokens: usize, n: usize) -> Vec<i64> {
    let mut all: Vec<i64> = (0..n as i64).collect();
    for i in (1..n).rev() {
        all.swap(i, random.below(i + 1));
    }
    all.resize(n.max(tokens), -1);
    all.truncate(tokens);
    for slot in &mut all {
        if random.one_in(8) {
            *slot = -1;
        }
    }
    if tokens > 0 && random.one_in(20) {
        all[random.below(tokens)] = (n + random.below(3)) as i64;
    }
    if random.one_in(30) {
        all.pop();
    }
    all
}

const CONTIGUOUS: [Layout; 3] = [Layout::Bshd, Layout::Bhsd, Layout::Sbhd];
const OF_PAGES: [Layout; 2] = [Layout::Nhd, Layout::Hnd];

fn context(random: &mut Random) -> &'static Context {
    static CONTEXTS: OnceLock<[Context; 4]> = OnceLock::new();
    let make = |dim| Config::new(dim, 1e4, Pairing::Halves).build().expect("a plain context");
    let contexts = CONTEXTS.get_or_init(|| [32, 64, 96, 48].map(make));
    &contexts[random.below(8).saturating_sub(4)]
}

/// Heads of type `In`, stored as `A` in an output and as `B` in a cache, from which they then move.
fn call<In: Bits, A: Code, B: Code>(random: &mut Random, counts: &mut Counts) {
    let rope = context(random);
    let dim = rope.head_dim();
    let (batch, tokens, heads) = (1 + random.below(2), 1 + random.below(4), 1 + random.below(3));
    let (pages, page_size) = (3, 1 + random.below(4));
    let x: Vec<In> = (0..batch * tokens * heads * dim).map(|_| In::from_number(random)).collect();
    let step = Step::new(batch, tokens, Positions::Offset(random.below(5000) as i64));
    let (mut turned, mut values) = (vec![0.0f32; x.len()], vec![0.0f32; x.len()]);
    let exact = Call::new()
        .with_q((View::bshd(&x, heads), ViewMut::bshd(&mut turned, heads)))
        .with_rest((View::bshd(&x, heads), ViewMut::bshd(&mut values, heads)));
    rope.apply_call(&step, exact).expect("a plain call");

    let mut out: Target<A> = Target::new(random, [batch, tokens], heads, dim, &CONTIGUOUS);
    let mut pages_of =
        || -> Target<B> { Target::new(random, [pages, page_size], heads, dim, &OF_PAGES) };
    let (mut k, mut v) = (pages_of(), pages_of());
    let slots = some_slots(random, batch * tokens, pages * page_size);
    for (i, (turned, values)) in turned.chunks(dim).zip(values.chunks(dim)).enumerate() {
        let (token, head) = (i / heads, i % heads);
        out.store([token / tokens, token % tokens, head], turned);
        if let Some(slot) = slots.get(token).and_then(|&slot| usize::try_from(slot).ok()) {
            k.store([slot / page_size, slot % page_size, head], turned);
            v.store([slot / page_size, slot % page_size, head], values);
        }
    }

    let step = step.with_slots(Slots::mapped(&slots));
    let view = || View::bshd(&x, heads);
    let mut cache = KvCache::new(pages, page_size).with_k(k.pages(false)).with_v(v.pages(false));
    let stored = rope.append(&step, (), view(), view(), &mut cache);
    counts.count("Context::append, codes", &stored);
    k.check("Context::append, k", stored.is_ok());
    v.check("Context::append, v", stored.is_ok());
    k.restore();
    v.restore();

    let mut cache = KvCache::new(pages, page_size).with_k(k.pages(false)).with_v(v.pages(false));
    let all = Call::new().with_q((view(), out.view(false))).with_k(view()).with_v(view());
    let once = rope.apply_call(&step, all.with_cache(&mut cache));
    counts.count("Context::apply_call, codes", &once);
    out.check("Context::apply_call, q", once.is_ok());
    k.check("Context::apply_call, k", once.is_ok());
    v.check("Context::apply_call, v", once.is_ok());
    out.restore();
    k.restore();
    v.restore();

    let empty = || View::<In>::bshd(&[], heads);
    let mut cache = KvCache::new(pages, page_size).with_k(k.pages(true)).with_v(v.pages(true));
    let all = Call::new().with_q((empty(), out.view(true))).with_k(empty()).with_v(empty());
    let prepared = rope.prepare_call(&step, all.with_cache(&mut cache)).and_then(|call| {
        let mut layer = Layer::new().with_q(&x).with_k(&x).with_v(&x);
        layer = layer.with_q_out(out.codes.slice_mut());
        layer = layer.with_cache_k(k.codes.slice_mut()).with_cache_v(v.codes.slice_mut());
        if let Scales::Array { e8m0, .. } = out.scales {
            layer = if e8m0 {
                layer.with_q_out_scales(out.exponents.slice_mut())
            } else {
                layer.with_q_out_scales(out.floats.slice_mut())
            };
        }
        if let Scales::Array { e8m0, .. } = k.scales {
            layer = if e8m0 {
                layer.with_cache_k_scales(k.exponents.slice_mut())
            } else {
                layer.with_cache_k_scales(k.floats.slice_mut())
            };
        }
        if let Scales::Array { e8m0, .. } = v.scales {
            layer = if e8m0 {
                layer.with_cache_v_scales(v.exponents.slice_mut())
            } else {
                layer.with_cache_v_scales(v.floats.slice_mut())
            };
        }
        call.apply(layer)
    });
    counts.count("PreparedCall, codes", &prepared);
    assert_eq!(once.is_ok(), prepared.is_ok(), "{once:?}, and prepared {prepared:?}");
    out.check("PreparedCall::apply, q", prepared.is_ok());
    k.check("PreparedCall::apply, k", prepared.is_ok());
    v.check("PreparedCall::apply, v", prepared.is_ok());
    if stored.is_ok() {
        k.settle();
        moves::<A, B>(rope, random, counts, k, &slots);
    }
}

/// Keys that are in these slots, to others of their cache, and to a cache of another type.
fn moves<A: Code, B: Code>(
    rope: &Context,
    random: &mut Random,
    counts: &mut Counts,
    mut k: Target<B>,
    slots: &[i64],
) {
    let ([pages, page_size], heads, dim) = (k.counts, k.heads, k.dim);
    let from: Vec<i64> = slots.iter().copied().filter(|&slot| slot >= 0).collect();
    let to = if random.one_in(3) {
        from.clone()
    } else {
        some_slots(random, from.len(), pages * page_size)
    };
    let place = |slot: usize, head| [slot / page_size, slot % page_size, head];
    let now = Positions::Offset(5000 + random.below(5000) as i64);
    let step =
        Step::new(1, from.len(), now).rerotating(Positions::Offset(random.below(5000) as i64));
    let mut held: Vec<f32> = from
        .iter()
        .flat_map(|&slot| {
            (0..heads).flat_map(|h| k.load(place(slot as usize, h))).collect::<Vec<_>>()
        })
        .collect();
    if !from.is_empty() {
        rope.apply(&step, (), ViewMut::bshd(&mut held, heads)).expect("keys in f32");
    }
    let mut other: Target<A> = Target::new(random, [pages, page_size], heads, dim, &OF_PAGES);
    for (i, &slot) in to.iter().enumerate() {
        let Ok(slot) = usize::try_from(slot) else { continue };
        for head in 0..heads {
            let x = &held[(i * heads + head) * dim..][..dim];
            other.store(place(slot, head), x);
            k.store(place(slot, head), x);
        }
    }
    let step = step.with_source(Slots::mapped(&from)).with_slots(Slots::mapped(&to));
    let source = KvCache::new(pages, page_size).with_k(k.pages(false));
    let mut cache = KvCache::new(pages, page_size).with_k(other.pages(false));
    let result = rope.move_between(&step, &source, &mut cache);
    counts.count("Context::move_between, codes", &result);
    k.check("Context::move_between, source", false);
    other.check("Context::move_between", result.is_ok());
    let result = rope.move_slots(&step, &mut KvCache::new(pages, page_size).with_k(k.pages(false)));
    counts.count("Context::move_slots, codes", &result);
    k.check("Context::move_slots", result.is_ok());
}

pub fn case(random: &mut Random, counts: &mut Counts) {
    match random.below(5) {
        0 => call::<f32, i8, F8E5M2>(random, counts),
        1 => call::<f32, F8E4M3, Q80>(random, counts),
        2 => call::<bf16, F8E5M2, F8E4M3>(random, counts),
        3 => call::<f16, Q80, Q80>(random, counts),
        _ => call::<bf16, Q80, i8>(random, counts),
    }
}
