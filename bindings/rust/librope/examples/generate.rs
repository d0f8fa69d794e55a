//! A small engine that generates tokens: two sequences in a paged cache, prompts first, then one token of each
//! per step. A call is prepared once for all layers of a step; in each layer it norms q and k, turns them, and
//! stores the turned keys and the values in pages, straight from the packed projection. The model has Qwen3's
//! shape and random weights; each token is that of plain code: one sequence, a norm of its own, a rotation
//! without a cache, and keys in a row.

use librope::{
    Call, Config, Context, KvCache, Layer, Norm, Norms, Pages, Pairing, Positions, Result, Slots,
    Step, Strides, View, ViewMut,
};

const VOCABULARY: usize = 64;
const HIDDEN: usize = 48;
const LAYERS: usize = 2;
const Q_HEADS: usize = 4;
const HEADS: usize = 2; // of k and v
const DIM: usize = 32;
const Q: usize = Q_HEADS * DIM;
const KV: usize = HEADS * DIM;
const PACKED: usize = Q + 2 * KV; // q, k and v of a token, as the projection leaves them
const PAGE_SIZE: usize = 4;
const PAGES: usize = 16;
const WIDTH: usize = 8; // the most pages of a sequence
const NEW: usize = 12; // tokens that are generated
const EPS: f32 = 1e-6; // of norms

/// Rows of weights: what one output needs lies together.
struct Weights {
    qkv: Vec<f32>,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    out: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
}

struct Model {
    layers: Vec<Weights>,
    embedding: Vec<f32>,
    head: Vec<f32>,
}

/// `count` numbers around `center`, the same on every run.
fn numbers(seed: &mut u32, count: usize, center: f32, scale: f32) -> Vec<f32> {
    let mut next = || {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        center + scale * ((*seed >> 8) as f32 / 8_388_608.0 - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

/// A matrix times x.
fn multiply(weights: &[f32], x: &[f32]) -> Vec<f32> {
    let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| w * x).sum();
    weights.chunks(x.len()).map(dot).collect()
}

/// RMS norm without a weight.
fn normed(x: &[f32]) -> Vec<f32> {
    let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    x.iter().map(|x| x / (mean + EPS).sqrt()).collect()
}

fn add(x: &mut [f32], more: &[f32]) {
    x.iter_mut().zip(more).for_each(|(x, more)| *x += more);
}

impl Model {
    fn new() -> Model {
        let seed = &mut 1;
        let mut layer = || Weights {
            qkv: numbers(seed, PACKED * HIDDEN, 0.0, 0.3),
            q_norm: numbers(seed, DIM, 2.0, 0.5),
            k_norm: numbers(seed, DIM, 2.0, 0.5),
            out: numbers(seed, HIDDEN * Q, 0.0, 0.3),
            up: numbers(seed, 2 * HIDDEN * HIDDEN, 0.0, 0.3),
            down: numbers(seed, 2 * HIDDEN * HIDDEN, 0.0, 0.3),
        };
        let layers = (0..LAYERS).map(|_| layer()).collect();
        let embedding = numbers(seed, VOCABULARY * HIDDEN, 0.0, 1.0);
        Model { layers, embedding, head: numbers(seed, VOCABULARY * HIDDEN, 0.0, 1.0) }
    }

    fn embed(&self, token: usize) -> Vec<f32> {
        self.embedding[token * HIDDEN..][..HIDDEN].to_vec()
    }

    /// The likeliest token behind x.
    fn next(&self, x: &[f32]) -> usize {
        let logits = multiply(&self.head, &normed(x));
        (0..VOCABULARY).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("a vocabulary")
    }
}

impl Weights {
    /// x of one token becomes its packed q, k and v.
    fn project(&self, x: &[f32]) -> Vec<f32> {
        multiply(&self.qkv, &normed(x))
    }

    /// What follows attention.
    fn finish(&self, attended: &[f32], x: &mut [f32]) {
        add(x, &multiply(&self.out, attended));
        let mut inner = multiply(&self.up, &normed(x));
        inner.iter_mut().for_each(|y| *y = y.max(0.0));
        add(x, &multiply(&self.down, &inner));
    }
}

/// Attention of one token's q over the keys and values of `slots`, in their order.
fn attend(q: &[f32], keys: &[f32], values: &[f32], slots: &[usize]) -> Vec<f32> {
    let mut out = vec![0.0; Q];
    for (h, (q, out)) in q.chunks(DIM).zip(out.chunks_mut(DIM)).enumerate() {
        let at = |slot: usize| slot * KV + h / (Q_HEADS / HEADS) * DIM;
        let dot = |k: &[f32]| q.iter().zip(k).map(|(q, k)| q * k).sum::<f32>();
        let score = |&slot: &usize| dot(&keys[at(slot)..][..DIM]) / (DIM as f32).sqrt();
        let scores: Vec<f32> = slots.iter().map(score).collect();
        let most = scores.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = scores.iter().map(|score| (score - most).exp()).sum();
        for (&slot, score) in slots.iter().zip(&scores) {
            let weight = (score - most).exp() / sum;
            let value = &values[at(slot)..][..DIM];
            out.iter_mut().zip(value).for_each(|(o, v)| *o += weight * v);
        }
    }
    out
}

/// The engine: continues both texts at once.
fn generate(rope: &Context, model: &Model, texts: &mut [Vec<usize>; 2]) -> Result<()> {
    let memory = || vec![0.0f32; PAGES * PAGE_SIZE * KV];
    let mut caches: Vec<_> = model.layers.iter().map(|_| (memory(), memory())).collect();
    let (mut table, mut used) = ([-1; 2 * WIDTH], 0);
    let mut lengths = [0; 2]; // of the sequences in the cache
    for _ in 0..NEW {
        // The tokens that are not in the cache yet, packed: a prompt, later one of each sequence.
        let (mut ends, mut x) = (vec![0], Vec::new());
        for (s, text) in texts.iter().enumerate() {
            for (n, &token) in text.iter().enumerate().skip(lengths[s] as usize) {
                x.push(model.embed(token));
                if n % PAGE_SIZE == 0 {
                    // Pages go round as they are needed: those of a sequence do not lie in a row.
                    table[s * WIDTH + n / PAGE_SIZE] = used * 5 % PAGES as i32;
                    used += 1;
                }
            }
            ends.push(x.len() as i32);
        }

        // The call of all layers. What they lend is described by empty slices; q has an output, because
        // q, k and v of a token share a row, which is only read.
        let norm = |weight| Norm::rms::<f32>(weight, EPS.into());
        let norms = Norms::new().with_q(norm(&[])).with_k(norm(&[]));
        let step = Step::new(1, x.len(), Positions::seq_offsets(&lengths))
            .with_cu_seqlens(&ends)
            .with_slots(Slots::paged(&table, WIDTH, &lengths))
            .with_norms(&norms);
        let row = |heads| {
            View::<f32>::strided(&[], heads, Strides { batch: 0, token: PACKED, head: DIM })
        };
        let mut cache = KvCache::new(PAGES, PAGE_SIZE)
            .with_k(Pages::<f32>::nhd(&mut [], HEADS))
            .with_v(Pages::<f32>::nhd(&mut [], HEADS));
        let call = Call::new()
            .with_q((row(Q_HEADS), ViewMut::<f32>::bshd(&mut [], Q_HEADS)))
            .with_k(row(HEADS))
            .with_v(row(HEADS))
            .with_cache(&mut cache);
        let call = rope.prepare_call(&step, call)?;

        for (layer, (keys, values)) in model.layers.iter().zip(&mut caches) {
            let packed: Vec<f32> = x.iter().flat_map(|x| layer.project(x)).collect();
            let mut q = vec![0.0f32; x.len() * Q];
            let lent = Layer::new().with_q(&packed[..]).with_q_out(&mut q);
            let lent = lent.with_k(&packed[Q..]).with_v(&packed[Q + KV..]);
            let lent = lent.with_cache_k(&mut *keys).with_cache_v(&mut *values);
            call.apply(lent.with_q_norm_weight(&layer.q_norm).with_k_norm_weight(&layer.k_norm))?;
            for (s, length) in lengths.iter().enumerate() {
                let page = |n: usize| table[s * WIDTH + n / PAGE_SIZE] as usize;
                for i in ends[s]..ends[s + 1] {
                    let past = (length + i - ends[s]) as usize;
                    let slots: Vec<usize> =
                        (0..=past).map(|n| page(n) * PAGE_SIZE + n % PAGE_SIZE).collect();
                    let attended = attend(&q[i as usize * Q..][..Q], keys, values, &slots);
                    layer.finish(&attended, &mut x[i as usize]);
                }
            }
        }
        for (s, text) in texts.iter_mut().enumerate() {
            lengths[s] = text.len() as i32;
            text.push(model.next(&x[ends[s + 1] as usize - 1]));
        }
    }
    println!("{lengths:?} tokens in {used} pages of {LAYERS} layers");
    Ok(())
}

/// The same plainly: one sequence, token by token.
fn generate_plainly(rope: &Context, model: &Model, prompt: &[usize]) -> Result<Vec<usize>> {
    let mut text = prompt.to_vec();
    let mut caches = vec![(Vec::new(), Vec::new()); LAYERS];
    for n in 0..prompt.len() + NEW - 1 {
        let mut x = model.embed(text[n]);
        let step = Step::new(1, 1, Positions::Offset(n as i64));
        let all: Vec<usize> = (0..=n).collect();
        for (layer, (keys, values)) in model.layers.iter().zip(&mut caches) {
            let packed = layer.project(&x);
            let norm = |part: &[f32], weight: &[f32]| -> Vec<f32> {
                let scaled = |head: &[f32]| -> Vec<f32> {
                    normed(head).iter().zip(weight).map(|(x, w)| x * w).collect()
                };
                part.chunks(DIM).flat_map(scaled).collect()
            };
            let mut q = norm(&packed[..Q], &layer.q_norm);
            let mut k = norm(&packed[Q..Q + KV], &layer.k_norm);
            rope.apply(&step, ViewMut::bshd(&mut q, Q_HEADS), ViewMut::bshd(&mut k, HEADS))?;
            keys.extend(k);
            values.extend_from_slice(&packed[Q + KV..]);
            layer.finish(&attend(&q, keys, values, &all), &mut x);
        }
        if n + 1 == text.len() {
            text.push(model.next(&x));
        }
    }
    Ok(text)
}

fn main() -> Result<()> {
    let rope = Config::new(DIM, 1e6, Pairing::Halves).build()?;
    let model = Model::new();
    let prompts = [vec![7, 42, 19], vec![3, 14, 15, 9, 26, 53, 58, 9, 7]];
    let mut texts = prompts.clone();
    generate(&rope, &model, &mut texts)?;
    for (text, prompt) in texts.iter().zip(&prompts) {
        assert_eq!(*text, generate_plainly(&rope, &model, prompt)?, "not the tokens of plain code");
        println!("{prompt:?}, then {:?}", &text[prompt.len()..]);
    }
    Ok(())
}
