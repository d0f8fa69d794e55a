//! Arrays of scales have the order of their codes: those of every layout against those of `nhd` or `bshd`,
//! permuted, and against strides that say the same.

mod common;

use common::{Random, refused};
use librope::{
    Call, Config, Context, KvCache, Layer, Layout, Pages, Pairing, Positions, Scale, Slots, Step,
    Strides, View, ViewMut,
};

/// Pages and slots, or batch rows and tokens.
const OUTER: usize = 3;
const INNER: usize = 4;
const HEADS: usize = 2;
const DIM: usize = 32;
const GROUPS: usize = 4;
const SCALES: usize = OUTER * INNER * HEADS * GROUPS;

fn rope() -> Context {
    Config::new(DIM, 10000.0, Pairing::Halves).build().unwrap()
}

/// Where the first element of a head is, in an array with one for each head.
fn place(layout: Layout, [outer, inner, head]: [usize; 3]) -> usize {
    match layout {
        Layout::Bhsd | Layout::Hnd => (outer * HEADS + head) * INNER + inner,
        Layout::Sbhd => (inner * OUTER + outer) * HEADS + head,
        _ => (outer * INNER + inner) * HEADS + head,
    }
}

/// The strides of an array with n elements for each head.
fn strides(layout: Layout, n: usize) -> Strides {
    let at = |index| place(layout, index) * n;
    Strides { batch: at([1, 0, 0]), token: at([0, 1, 0]), head: at([0, 0, 1]) }
}

/// An array in the order of `Nhd` and `Bshd` in that of another layout.
fn permuted<T: Copy>(x: &[T], to: Layout) -> Vec<T> {
    let n = x.len() / (OUTER * INNER * HEADS);
    let mut out = x.to_vec();
    for (i, head) in x.chunks(n).enumerate() {
        let at = place(to, [i / (INNER * HEADS), i / HEADS % INNER, i % HEADS]);
        out[at * n..][..n].copy_from_slice(head);
    }
    out
}

/// Heads of sizes that differ from group to group.
fn heads() -> Vec<f32> {
    let x: Vec<f32> = Random(9).vec(OUTER * INNER * HEADS * DIM);
    x.iter().enumerate().map(|(i, x)| x * (1 + i / (DIM / GROUPS) % 29) as f32).collect()
}

fn pages<'a>(codes: &'a mut [i8], layout: Layout, scale: Scale<'a>) -> Pages<'a, i8> {
    let scale = scale.with_group((DIM / GROUPS) as u16);
    let pages = match layout {
        Layout::Nhd => Pages::nhd(codes, HEADS),
        Layout::Hnd => Pages::hnd(codes, HEADS),
        Layout::Strided(strides) => Pages::strided(codes, HEADS, strides),
        _ => unreachable!("no layout of pages"),
    };
    pages.with_scale(scale)
}

/// The codes of a cache whose slots are all filled.
fn fill(layout: Layout, scale: Scale<'_>) -> Vec<i8> {
    let (k, mut codes) = (heads(), vec![0i8; OUTER * INNER * HEADS * DIM]);
    let slots: Vec<i32> = (0..(OUTER * INNER) as i32).collect();
    let step = Step::new(1, slots.len(), Positions::Offset(3)).with_slots(Slots::mapped(&slots));
    let mut cache = KvCache::new(OUTER, INNER).with_k(pages(&mut codes, layout, scale));
    rope().append(&step, (), View::bshd(&k, HEADS), (), &mut cache).unwrap();
    codes
}

#[test]
fn scales_of_a_cache_have_the_order_of_its_pages() {
    let (mut nhd, mut nhd_bytes) = (vec![0f32; SCALES], vec![0u8; SCALES]);
    let codes = fill(Layout::Nhd, Scale::computed(&mut nhd));
    fill(Layout::Nhd, Scale::computed_e8m0(&mut nhd_bytes));

    let (mut hnd, mut by_strides) = (vec![0f32; SCALES], vec![0f32; SCALES]);
    let of_hnd = fill(Layout::Hnd, Scale::computed(&mut hnd));
    let same = strides(Layout::Hnd, GROUPS);
    fill(Layout::Hnd, Scale::computed(&mut by_strides).with_strides(same));
    assert_eq!(hnd, permuted(&nhd, Layout::Hnd), "not [pages, heads, page_size, groups]");
    assert_eq!(hnd, by_strides);
    assert_eq!(of_hnd, permuted(&codes, Layout::Hnd));
    let mut hnd_bytes = vec![0u8; SCALES];
    fill(Layout::Hnd, Scale::computed_e8m0(&mut hnd_bytes));
    assert_eq!(hnd_bytes, permuted(&nhd_bytes, Layout::Hnd));

    // Given scales are read in the same order; and one layout may have the array of another, by strides.
    assert_eq!(fill(Layout::Hnd, Scale::given_array(&hnd)), of_hnd);
    assert_eq!(fill(Layout::Nhd, Scale::given_array(&nhd)), codes);
    let other = Scale::given_array(&nhd).with_strides(strides(Layout::Nhd, GROUPS));
    assert_eq!(fill(Layout::Hnd, other), of_hnd);

    // Pages of strides have no order of their own.
    let mut strided = vec![0f32; SCALES];
    fill(Layout::Strided(strides(Layout::Hnd, DIM)), Scale::computed(&mut strided));
    assert_eq!(strided, nhd);
}

#[test]
fn prepared_calls_and_moves_have_the_same_order() {
    let mut hnd = vec![0f32; SCALES];
    let mut of_hnd = fill(Layout::Hnd, Scale::computed(&mut hnd));
    let mut nhd = vec![0f32; SCALES];
    let codes = fill(Layout::Nhd, Scale::computed(&mut nhd));
    let (rope, k) = (rope(), heads());
    let slots: Vec<i32> = (0..(OUTER * INNER) as i32).collect();
    let step = Step::new(1, slots.len(), Positions::Offset(3)).with_slots(Slots::mapped(&slots));

    let described = pages(&mut [], Layout::Hnd, Scale::computed(&mut []));
    let mut cache = KvCache::new(OUTER, INNER).with_k(described);
    let call = Call::new().with_k(View::<f32>::bshd(&[], HEADS)).with_cache(&mut cache);
    let call = rope.prepare_call(&step, call).unwrap();
    let (mut again, mut scales) = (vec![0i8; codes.len()], vec![0f32; SCALES]);
    let layer = Layer::new().with_k(&k).with_cache_k(&mut again);
    call.apply(layer.with_cache_k_scales(&mut scales)).unwrap();
    assert!(again == of_hnd && scales == hnd, "a prepared call has another order");

    let (mut moved, mut moved_scales) = (vec![0i8; codes.len()], vec![0f32; SCALES]);
    let source = pages(&mut of_hnd, Layout::Hnd, Scale::computed(&mut hnd));
    let source = KvCache::new(OUTER, INNER).with_k(source);
    let to = pages(&mut moved, Layout::Nhd, Scale::computed(&mut moved_scales));
    let mut to = KvCache::new(OUTER, INNER).with_k(to);
    let nope = Config::nope(DIM).build().unwrap();
    nope.move_between(&step, &source, &mut to).unwrap();
    assert!(moved == codes && moved_scales == nhd, "a move from hnd to nhd has another order");
}

#[test]
fn scales_of_outputs_have_their_order() {
    let (q, rope) = (heads(), rope());
    let apply = |layout, scale: Scale<'_>| {
        let mut codes = vec![0i8; q.len()];
        let scale = scale.with_group((DIM / GROUPS) as u16);
        let out = ViewMut::new(&mut codes, layout, HEADS).with_scale(scale);
        let step = Step::new(OUTER, INNER, Positions::Offset(3));
        rope.apply(&step, (View::bshd(&q, HEADS), out), ()).map(|()| codes)
    };
    let mut bshd = vec![0f32; SCALES];
    let codes = apply(Layout::Bshd, Scale::computed(&mut bshd)).unwrap();
    for layout in [Layout::Bhsd, Layout::Sbhd] {
        let (mut computed, mut by_strides) = (vec![0f32; SCALES], vec![0f32; SCALES]);
        let others = apply(layout, Scale::computed(&mut computed)).unwrap();
        let same = strides(layout, GROUPS);
        apply(layout, Scale::computed(&mut by_strides).with_strides(same)).unwrap();
        assert_eq!(computed, permuted(&bshd, layout), "{layout:?}");
        assert_eq!(computed, by_strides, "{layout:?}");
        assert_eq!(others, permuted(&codes, layout), "{layout:?}");
        assert_eq!(apply(layout, Scale::given_array(&computed)).unwrap(), others, "{layout:?}");
    }
}

#[test]
fn messages_say_the_shape_of_the_layout() {
    let (q, few, rope) = (heads(), vec![1f32; SCALES - 1], rope());
    let scale = || Scale::given_array(&few).with_group((DIM / GROUPS) as u16);
    let outputs = [
        (Layout::Bshd, "[batch, tokens, heads, groups] = [3, 4, 2, 4]"),
        (Layout::Bhsd, "[batch, heads, tokens, groups] = [3, 2, 4, 4]"),
        (Layout::Sbhd, "[tokens, batch, heads, groups] = [4, 3, 2, 4]"),
    ];
    for (layout, shape) in outputs {
        let mut codes = vec![0i8; q.len()];
        let out = ViewMut::new(&mut codes, layout, HEADS).with_scale(scale());
        let step = Step::new(OUTER, INNER, Positions::Offset(3));
        let message = refused(rope.apply(&step, (View::bshd(&q, HEADS), out), ()));
        let want =
            format!("the scales of q_out are {shape} and need 96 elements, and their slice has 95");
        assert!(message.contains(&want), "{message}");
    }
    let step = Step::new(1, 1, Positions::Offset(3)).with_slots(Slots::mapped(&[0]));
    let of_strides = strides(Layout::Hnd, GROUPS);
    let caches = [
        (Layout::Nhd, scale(), "[pages, page size, heads, groups] = [3, 4, 2, 4]"),
        (Layout::Hnd, scale(), "[pages, heads, page size, groups] = [3, 2, 4, 4]"),
        (
            Layout::Hnd,
            scale().with_strides(of_strides),
            "[pages, page size, heads, groups] = [3, 4, 2, 4] and need 96 elements or more, by their strides",
        ),
    ];
    for (layout, scale, shape) in caches {
        let mut codes = vec![0i8; q.len()];
        let mut cache = KvCache::new(OUTER, INNER).with_k(pages(&mut codes, layout, scale));
        let k = View::bshd(&q[..HEADS * DIM], HEADS);
        let message = refused(rope.append(&step, (), k, (), &mut cache));
        let want = format!("the scales of the cache's k are {shape}");
        assert!(message.contains(&want), "{message}");
    }
}
