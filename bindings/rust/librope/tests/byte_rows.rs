//! Rows of bytes in which codes, their scales and the key have types of their own: against a packer that is
//! written here, and what does not fit is refused before anything is written.

mod common;

use common::{Random, refused};
use librope::half::{bf16, f16};
use librope::{
    BytePart, Config, Context, F8E4M3, KvCache, Layout, Pairing, Positions, Q80, Result, Scale,
    Slots, Step, Strides, View, bytes_of,
};

const LATENT: usize = 512;
const GROUP: usize = 128;
const SPAN: usize = 64;
const ROW: usize = 656; // the latent, four scales in f32, the span in bf16
const PAGES: usize = 3;
const PAGE_SIZE: usize = 16;
const TOKENS: usize = 21;

/// Bytes that are aligned to every element.
#[derive(Clone, PartialEq)]
#[repr(C, align(16))]
struct Memory([u8; PAGES * PAGE_SIZE * ROW]);

fn rope() -> Context {
    Config::new(SPAN, 10000.0, Pairing::Interleaved).build().unwrap()
}

/// Of elements of so many bytes.
fn rows(size: usize) -> Strides {
    Strides { batch: PAGE_SIZE * ROW / size, token: ROW / size, head: 0 }
}

fn scale<'a>() -> Scale<'a> {
    let scale = Scale::computed(&mut []).with_group(GROUP as u16).with_strides(rows(4));
    scale.with_power_of_two().with_min_scale(1e-4)
}

fn given<'a>() -> Scale<'a> {
    Scale::given_array(&[]).with_group(GROUP as u16).with_strides(rows(4))
}

fn latent<'a>() -> BytePart<'a> {
    BytePart::of::<F8E4M3>(0, 1, rows(1)).with_scale_at(LATENT, scale())
}

fn key<'a>() -> BytePart<'a> {
    BytePart::of::<bf16>(LATENT + 16, 1, rows(2))
}

/// The size of a code without its sign.
fn size_of_code(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3), f32::from(code & 7));
    if exponent == 0 { mantissa / 512.0 } else { (8.0 + mantissa) * 2f32.powi(exponent - 10) }
}

/// The nearest of all codes, of two that are as near the even one.
fn nearest(x: f32) -> u8 {
    let off = |code: u8| (size_of_code(code) - x.abs()).abs();
    let nearer = |a: &u8, b: &u8| off(*a).total_cmp(&off(*b)).then((a & 1).cmp(&(b & 1)));
    (0..0x7f).min_by(nearer).unwrap() | u8::from(x.is_sign_negative()) << 7
}

/// The least power of two that is not below x.
fn power_of_two_above(x: f32) -> f32 {
    f32::from_bits((x.to_bits() + 0x7f_ffff) & 0xff80_0000)
}

/// A row of these numbers, of a key that has turned.
fn pack(latent: &[bf16], key: &[bf16]) -> Vec<u8> {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for group in latent.chunks(GROUP) {
        let largest = group.iter().fold(0f32, |most, x| most.max(x.to_f32().abs()));
        let scale = power_of_two_above((largest / 448.0).max(1e-4));
        codes.extend(group.iter().map(|x| nearest(x.to_f32() / scale)));
        scales.extend(scale.to_ne_bytes());
    }
    codes.extend(scales);
    codes.extend(key.iter().flat_map(|x| x.to_ne_bytes()));
    codes
}

/// A row of latent and key for each token, of sizes that differ by powers of two, and their slots.
fn numbers() -> (Vec<bf16>, Vec<i64>) {
    let mut random = Random(2028);
    let mut number = || bf16::from_f64(random.signed() * 2f64.powi(-(random.below(14) as i32)));
    let mut numbers: Vec<bf16> = (0..TOKENS * (LATENT + SPAN)).map(|_| number()).collect();
    numbers[..GROUP].fill(bf16::ZERO); // a group whose scale is the least
    let slots = (0..TOKENS).map(|token| (token * 29 + 5) % (PAGES * PAGE_SIZE));
    (numbers, slots.map(|slot| slot as i64).collect())
}

fn append(numbers: &[bf16], slots: &[i64], cache: &mut KvCache<'_>) -> Result<()> {
    let strides = Strides { batch: 0, token: LATENT + SPAN, head: 0 };
    let step = Step::new(1, TOKENS, Positions::Offset(100)).with_slots(Slots::mapped(slots));
    let (k, v) =
        (View::strided(&numbers[LATENT..], 1, strides), View::strided(numbers, 1, strides));
    rope().append(&step, (), k, v, cache)
}

#[test]
fn rows_of_656_bytes_are_those_of_flash_mla() {
    let (numbers, slots) = numbers();
    let mut memory = Memory([0x33; PAGES * PAGE_SIZE * ROW]);
    let mut want = memory.clone();
    let cache = KvCache::in_bytes(PAGES, PAGE_SIZE, &mut memory.0, Some(key()), Some(latent()));
    append(&numbers, &slots, &mut cache.unwrap().with_v_head_dim(LATENT)).unwrap();

    let strides = Strides { batch: 0, token: LATENT + SPAN, head: 0 };
    let step = Step::new(1, TOKENS, Positions::Offset(100));
    let keys = View::strided(&numbers[LATENT..], 1, strides);
    let turned = rope().apply_to_vec(&step, keys, Layout::Bshd).unwrap();
    for (token, &slot) in slots.iter().enumerate() {
        let latent = &numbers[token * (LATENT + SPAN)..][..LATENT];
        let row = pack(latent, &turned[token * SPAN..][..SPAN]);
        want.0[slot as usize * ROW..][..ROW].copy_from_slice(&row);
    }
    let different = (0..want.0.len()).find(|&i| memory.0[i] != want.0[i]);
    assert_eq!(different.map(|i| (i / ROW, i % ROW)), None, "the first byte that differs");
}

/// A row goes to another slot: its codes and scales as they are, and its key by the distance.
#[test]
fn rows_move_with_their_scales() {
    let (numbers, slots) = numbers();
    let mut memory = Memory([0x33; PAGES * PAGE_SIZE * ROW]);
    let (from, to) = (slots[2] as usize, 0); // which no token has
    assert!(!slots.contains(&0));
    let cache = KvCache::in_bytes(PAGES, PAGE_SIZE, &mut memory.0, Some(key()), Some(latent()));
    let mut cache = cache.unwrap().with_v_head_dim(LATENT);
    append(&numbers, &slots, &mut cache).unwrap();
    let step = Step::new(1, 1, Positions::Offset(7)).rerotating(Positions::Offset(102));
    let moved = step.with_source(Slots::mapped(&slots[2..3])).with_slots(Slots::mapped(&[0i64]));
    rope().move_slots(&moved, &mut cache).unwrap();
    drop(cache);

    let row = |slot: usize| &memory.0[slot * ROW..][..ROW];
    assert!(row(from)[..LATENT + 16] == row(to)[..LATENT + 16], "codes and scales");
    let key_of = |row: &[u8]| -> Vec<bf16> {
        row[LATENT + 16..].chunks(2).map(|x| bf16::from_ne_bytes([x[0], x[1]])).collect()
    };
    let key = key_of(row(from));
    let want = rope().apply_to_vec(&step, View::bshd(&key, 1), Layout::Bshd).unwrap();
    assert!(key_of(row(to)) == want && want != key, "the key");
}

#[test]
fn bytes_are_those_of_the_elements() {
    let mut memory = [1.0f32, -2.0, 3.5];
    let bytes = bytes_of(&mut memory);
    assert_eq!(bytes.len(), 12);
    assert_eq!(bytes[4..8], (-2.0f32).to_ne_bytes());
    bytes[8..].copy_from_slice(&0.25f32.to_ne_bytes());
    assert!(memory == [1.0, -2.0, 0.25]);
    let mut blocks = [Q80 { d: f16::ONE, codes: [7; 32] }; 2];
    let bytes = bytes_of(&mut blocks);
    assert_eq!((bytes.len(), bytes[33], bytes[36]), (68, 7, 7));
    bytes[67] = 0xff;
    assert_eq!(blocks[1].codes[31], -1);
    assert_eq!(bytes_of::<bf16>(&mut []), [0u8; 0]);
}

/// Keys alone, and one scale for all.
#[test]
fn a_part_may_be_alone() {
    let k: Vec<bf16> = Random(3).vec(SPAN);
    let step = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::mapped(&[1]));
    let mut bytes = [0x33; 3 * SPAN];
    let strides = Strides { batch: 0, token: SPAN, head: 0 };
    let part = BytePart::of::<F8E4M3>(SPAN, 1, strides).with_scale(Scale::given(0.25));
    let mut cache = KvCache::in_bytes(1, 2, &mut bytes, Some(part), None).unwrap();
    rope().append(&step, (), View::bshd(&k, 1), (), &mut cache).unwrap();
    assert_eq!(bytes[..2 * SPAN], [0x33; 2 * SPAN]);
    // Position 0 leaves the key as it is.
    let want: Vec<u8> = k.iter().map(|x| nearest(x.to_f32() * 4.0)).collect();
    assert_eq!(bytes[2 * SPAN..], want);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (numbers, slots) = numbers();
    let mut memory = Memory([0x33; PAGES * PAGE_SIZE * ROW]);
    let end = memory.0.len();
    let mut message = |len: usize, k, v| {
        let cache = KvCache::in_bytes(PAGES, PAGE_SIZE, &mut memory.0[..len], Some(k), Some(v));
        refused(
            cache.and_then(|cache| append(&numbers, &slots, &mut cache.with_v_head_dim(LATENT))),
        )
    };
    let codes = || BytePart::of::<F8E4M3>(0, 1, rows(1));
    let key_at = |offset| BytePart::of::<bf16>(offset, 1, rows(2));
    for (len, k, v, words) in [
        (end, key_at(end + 1), latent(), "the cache's k begins at byte 31489 of 31488"),
        (end, key_at(end), latent(), "the cache's k with pages 3"),
        (end - 1, key(), latent(), "the cache's k with pages 3"),
        (end, key_at(530), latent(), "needs 15480 elements or more, and its slice has 15479"),
        (end, key_at(527), latent(), "aligned"),
        (end, key_at(526), latent(), "overlaps"),
        (end, key(), codes().with_scale_at(510, scale()), "aligned"),
        (end, key(), codes().with_scale_at(508, scale()), "overlaps"),
        (end, key(), codes().with_scale_at(516, scale()), "overlaps"),
        (end, key(), codes().with_scale_at(end, scale()), "by their strides"),
        (end, key(), codes().with_scale_at(644, scale()), "and their slice has 7711"),
        (end, key(), codes().with_scale_at(end + 1, scale()), "begins at byte 31489"),
        (end, key(), codes().with_scale_at(512, Scale::given(1.0)), "must be computed"),
        (end, key(), codes().with_scale_at(512, Scale::computed(&mut [1.0])), "by an empty slice"),
        (end, key(), codes().with_scale(scale()), "and their slice has 0"),
        (end, key(), codes().with_scale_at(512, given()), "must be computed"),
        (end, key(), codes(), "the scale of the cache's v (None) is required"),
        (end, key(), latent().span(), "no span"),
    ] {
        let got = message(len, k, v);
        assert!(got.contains(words), "{words}: {got}");
    }
    assert!(memory.0.iter().all(|&byte| byte == 0x33), "a refused call has written");
}
