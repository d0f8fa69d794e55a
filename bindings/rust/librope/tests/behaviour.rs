//! The promises of the crate: what is refused and why, what threads may do, what models say.

mod common;

use std::sync::Arc;
use std::thread;

use common::Random;
use librope::half::{bf16, f16};
use librope::{
    Angle, Config, Context, CosSin, CosSinMut, DType, Device, Error, Layout, LongRope, Model,
    Operation, Pairing, Part, Pool, Positions, Prepared, PromptPart, Rounding, Runner, Scale,
    Scaling, Shape, Step, Strides, View, ViewMut, Yarn, prompt_ids,
};

fn rope(head_dim: usize) -> Context {
    Config::new(head_dim, 10000.0, Pairing::Halves).build().unwrap()
}

fn refused<T: std::fmt::Debug>(result: librope::Result<T>, words: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
    assert!(error.message().contains(words), "{error}");
}

#[test]
fn types_are_shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Context>();
    check::<Config>();
    check::<Model>();
    check::<Pool>();
    check::<Runner>();
    check::<Error>();
    check::<Step>();
    check::<View<f32>>();
    check::<ViewMut<bf16>>();
    check::<CosSin>();
    check::<CosSinMut>();
    check::<Shape<f32>>();
    check::<Prepared<Shape<f32>>>();
}

#[test]
fn versions_agree() {
    let (major, minor, patch) = librope::library_version();
    assert_eq!(librope::VERSION, format!("{major}.{minor}.{patch}"));
    use librope::sys::{ROPE_VERSION_MAJOR, ROPE_VERSION_MINOR, ROPE_VERSION_PATCH};
    assert_eq!((major, minor, patch), (ROPE_VERSION_MAJOR, ROPE_VERSION_MINOR, ROPE_VERSION_PATCH));

    // What the other languages say, as far as they are here.
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let quoted = format!("\"{}\"", librope::VERSION);
    let header = std::fs::read_to_string(root.join("include/librope/rope.h")).unwrap();
    for (part, value) in [("MAJOR", major), ("MINOR", minor), ("PATCH", patch)] {
        assert!(header.contains(&format!("#define ROPE_VERSION_{part} {value}\n")));
    }
    let files = [
        ("bindings/rust/Cargo.toml", format!("version = {quoted}")),
        ("bindings/rust/librope/Cargo.toml", format!("librope-sys = {{ version = {quoted}")),
        ("bindings/go/rope.go", format!("const Version = {quoted}")),
        ("bindings/python/pyproject.toml", format!("version = {quoted}")),
    ];
    for (file, line) in files {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        // A project that reads its version from the header cannot be wrong.
        let dynamic = text.contains("dynamic = [") && text.contains("\"version\"");
        assert!(dynamic || text.contains(&line), "{file} does not say {line}");
    }
}

#[test]
fn errors_have_status_and_message() {
    let error = Config::new(0, 10000.0, Pairing::Halves).build().unwrap_err();
    assert_eq!(error.status(), -1);
    assert!(error.message().starts_with("Config::build: head_dim (0) "), "{error}");
    assert!(error.to_string().ends_with("(invalid argument)"), "{error}");
    let boxed: Box<dyn std::error::Error + Send + Sync> = error.into();
    assert!(boxed.downcast_ref::<Error>().is_some());

    let json = r#"{"model_type": "llama", "head_dim": 64, "num_hidden_layers": 1,
        "rope_scaling": {"rope_type": "lama3"}}"#;
    let error = Model::from_json(json).unwrap_err();
    assert!(matches!(error, Error::Parse(_)) && error.message().contains("lama3"), "{error}");

    // Every thread has its own message.
    thread::scope(|scope| {
        for n in 0..8 {
            scope.spawn(move || {
                for _ in 0..500 {
                    let dim = 101 + 2 * n;
                    let error = Config::new(dim, 1e4, Pairing::Halves).build().unwrap_err();
                    assert!(error.message().contains(&format!("({dim})")), "{error}");
                }
            });
        }
    });
}

#[test]
fn configurations_are_checked() {
    let base = || Config::new(64, 10000.0, Pairing::Halves);
    assert!(base().with_theta(0.0).build().is_err());
    assert!(base().with_rotary_dim(63).build().is_err());
    assert!(base().with_rotary_dim(66).build().is_err());
    assert!(base().with_rotary_dim(usize::MAX).build().is_err());
    assert!(base().with_scaling(Scaling::Linear { factor: 0.0 }).build().is_err());
    refused(base().with_mrope(&[8; 5], false).build(), "up to 4");
    refused(base().with_mrope(&[16, 24, 24], false).build(), "mrope_section");
    refused(base().with_freq_factors([1.0; 31]).build(), "the length of the tables (31)");
    let both = base().with_freq_factors([1.0; 32]).with_pair_axis(2, [0u8; 31]);
    refused(both.build(), "one entry per pair");
    let long = LongRope::new([], [], 4096);
    assert!(base().with_scaling(Scaling::LongRope(long)).build().is_err());

    // A scaling replaces all numbers of the one before it.
    let yarn = Yarn::new(4.0, 4096);
    let config = base().with_scaling(Scaling::Yarn(yarn)).with_scaling(Scaling::Default);
    assert_eq!(config.build().unwrap().inv_freq(0), rope(64).inv_freq(0));
    let frequencies = rope(64).inv_freq(0).unwrap();
    let given = Config::from_inv_freq(64, Pairing::Halves, frequencies.clone());
    assert_eq!(given.build().unwrap().inv_freq(0).unwrap(), frequencies);
    assert!(base().with_angle(Angle::Ggml).build().is_ok());
    let ggml = given.with_angle(Angle::Ggml);
    assert!(matches!(ggml.build(), Err(Error::Unsupported(_))));
    let f16 = base().with_inv_freq_dtype(DType::F16).build().unwrap();
    assert_ne!(f16.inv_freq(0), rope(64).inv_freq(0));
    assert!(rope(64).backend().starts_with("cpu"));
}

#[test]
fn contexts_of_absent_devices_say_so() {
    let config = Config::new(64, 10000.0, Pairing::Halves).with_device(Device::Cuda(99));
    assert!(matches!(config.build(), Err(Error::Unavailable(_))));
}

#[test]
fn slices_of_other_lengths_are_refused() {
    let rope = rope(64);
    let mut q = vec![1.0f32; 3 * 2 * 64];
    let before = q.clone();
    refused(
        rope.apply_thd(&[1, 2, 3, 4], &mut q, 2, &mut [], 0),
        "q with tokens 4, heads 2 and channels 64 needs 512 elements, and its slice has 384",
    );
    refused(rope.apply_thd(&[1, 2, 3], &mut q, 3, &mut [], 0), "q with tokens 3, heads 3");
    refused(
        rope.apply_thd(&[1, 2, 3], &mut q, 0, &mut [], 0),
        "needs 0 elements, and its slice has 384",
    );
    refused(rope.apply_thd::<f32>(&[1], &mut [], usize::MAX / 32, &mut [], 0), "heads");
    refused(rope.apply_thd::<f32>(&[1], &mut [], 0, &mut [], 0), "absent");

    let step = Step::new(1, 3, Positions::Offset(0));
    type Make = fn(&mut [f32]) -> ViewMut<f32>;
    let mut apply = |step: &Step, f: Make, words: &str| {
        refused(rope.apply(step, f(&mut q), ()), words);
    };
    apply(&step, |q| ViewMut::bshd(q, 1), "layout Bshd needs 192 elements, and its slice has 384");
    apply(&step, |q| ViewMut::bhsd(q, 3), "needs 576 elements, and its slice has 384");
    apply(&step, |q| ViewMut::bshd(q, 0), "needs 0 elements, and its slice has 384");
    apply(
        &step,
        |q| ViewMut::bshd(q, usize::MAX),
        "heads (18446744073709551615) must not be beyond",
    );
    let beyond: Make = |q| ViewMut::strided(q, 2, Strides { token: 129, head: 64, batch: 0 });
    apply(&step, beyond, "needs 386 elements or more, and its slice has 384");
    let wrapping: Make =
        |q| ViewMut::strided(q, 3, Strides { token: 0, head: usize::MAX / 2, batch: 0 });
    apply(&step, wrapping, "is beyond the address space");
    let repeated: Make = |q| ViewMut::strided(q, 2, Strides { token: 128, head: 0, batch: 0 });
    apply(&step, repeated, "overlap");
    let whole: Make = |q| ViewMut::bshd(q, 2);
    let ids = [0i32; 4];
    apply(&Step::new(1, 3, Positions::tokens(&ids)), whole, "4 entries");
    apply(&Step::new(1, 3, Positions::batch_tokens(&ids)), whole, "4 entries");
    apply(&Step::new(1, 3, Positions::axes_batch_tokens(&ids)), whole, "4 entries");
    apply(&Step::new(1, 3, Positions::seq_offsets(&ids)), whole, "4 entries");
    let strided = Positions::Strided { ids: (&ids).into(), axis: 0, batch: 0, token: 2 };
    apply(&Step::new(1, 3, strided), whole, "the ids need 5 entries by their strides");
    let no_batch = Step::new(0, 3, Positions::Offset(0));
    apply(&no_batch, whole, "Context::apply: batch (0) is required: 1 for packed sequences");
    let scaled = |step: &Step<'_>, codes: &mut [i8], scales: &mut [f32]| {
        let out = ViewMut::bshd(codes, 2).with_scale(Scale::computed(scales));
        rope.apply(step, (View::<f32>::bshd(&[], 2), out), ())
    };
    refused(scaled(&no_batch, &mut [], &mut [0.0; 6]), "batch (0) is required");
    apply(&step.with_cu_seqlens(&[]), whole, "cu_seqlens (0 entries)");
    apply(&step.with_cu_seqlens(&[0, 4]), whole, "cu_seqlens[1] (4)");
    apply(&step.with_freq_sets(&[0]), whole, "freq_sets");
    apply(&step.with_freq_sets(&[0, 0]), whole, "2 entries");
    assert_eq!(q, before, "nothing is written on error");
    refused(rope.apply(&step, (), ()), "absent");
}

#[test]
fn rows_of_other_sizes_are_refused() {
    let rope = rope(64);
    let mut q = vec![1.0f32; 3 * 2 * 64];
    let table = vec![0.5f32; 3 * 32];
    let mut apply = |rows| {
        let step = Step::with_rows(1, 3, rows);
        rope.apply(&step, ViewMut::bshd(&mut q, 2), ())
    };
    apply(CosSin::split(&table, &table)).unwrap();
    apply(CosSin::split(&table, &table).shared()).unwrap();
    refused(
        apply(CosSin::split(&table, &table[1..])),
        "need 96 elements or more, and the slice of cos and sin has 95",
    );
    refused(apply(CosSin::packed(&table)), "has 96");
    refused(apply(CosSin::split(&table, &table).with_stride(33)), "stride 33");
    refused(apply(CosSin::split(&table, &table).with_stride(usize::MAX)), "stride");
    refused(apply(CosSin::split(&table, &table).per_head(2)), "each of 2 heads");
    refused(apply(CosSin::split(&table, &table).per_head(1 << 31)), "too many");
    refused(apply(CosSin::split(&table, &table).with_head_stride(32)), "without heads");
    let step = Step::with_rows(1, 3, CosSin::split(&table, &table));
    let inverse = step.with_operation(Operation::Inverse);
    refused(
        rope.apply(&inverse, ViewMut::bshd(&mut q, 2), ()),
        "Operation::Forward or Operation::Backward",
    );
    refused(rope.apply(&step.with_freq_sets(&[0]), ViewMut::bshd(&mut q, 2), ()), "belong to");

    let mut out = vec![0.0f32; 3 * 64];
    refused(rope.fill_cos_sin(&step, CosSinMut::packed(&mut out)), "needs positions");
    let step = Step::new(1, 3, Positions::Offset(0));
    refused(rope.fill_cos_sin(&step, CosSinMut::angles(&mut out)), "has 192");
    refused(
        rope.fill_cos_sin(&step, CosSinMut::packed(&mut out[1..])),
        "need 192 elements, and the slice of cos and sin has 191",
    );
    let (cos, longer) = out.split_at_mut(96);
    longer[0] = 7.0;
    refused(
        rope.fill_cos_sin(
            &Step::new(1, 2, Positions::Offset(0)),
            CosSinMut::split(&mut cos[..64], longer),
        ),
        "must have the same length, not 64 and 96",
    );
    for (batch, tokens) in [(0, 3), (1, 0)] {
        let nothing = Step::new(batch, tokens, Positions::Offset(0));
        refused(rope.fill_cos_sin(&nothing, CosSinMut::packed(longer)), "need 0 elements");
        rope.fill_cos_sin(&nothing, CosSinMut::packed::<f32>(&mut [])).unwrap();
        rope.fill_cos_sin(&nothing, CosSinMut::packed(longer).with_stride(64)).unwrap();
    }
    assert_eq!(longer[0], 7.0);
    rope.fill_cos_sin(&step, CosSinMut::sinusoidal(&mut out)).unwrap();
    rope.fill_cos_sin(&step, CosSinMut::angles_full(&mut out)).unwrap();
    assert_eq!((out[64], out[64 + 32]), (1.0, 1.0)); // position 1, frequency 1
}

#[test]
fn no_tokens_is_no_work() {
    let rope = rope(64);
    rope.apply_thd::<f32>(&[], &mut [], 4, &mut [], 2).unwrap();
    let step = Step::new(2, 0, Positions::Offset(0));
    rope.apply(&step, ViewMut::<f32>::bshd(&mut [], 4), ()).unwrap();
    // No rows, in every place and layout.
    let step = Step::new(0, 2, Positions::Offset(0));
    rope.apply(&step, ViewMut::<f32>::bshd(&mut [], 4), ViewMut::<bf16>::sbhd(&mut [], 2)).unwrap();
    let pair = (View::<f32>::bhsd(&[], 4), ViewMut::<f32>::bshd(&mut [], 4));
    rope.apply(&step, (), pair).unwrap();
    let mut x = vec![1.0f32; 2 * 64];
    let strides = Strides { token: 64, head: 64, batch: 0 };
    rope.apply(&step, ViewMut::strided(&mut x, 1, strides), ()).unwrap();
    let empty = View::<f32>::bshd(&[], 4);
    assert!(rope.apply_to_vec(&step, empty, Layout::Bhsd).unwrap().is_empty());
    assert!(x.iter().all(|&x| x.to_bits() == 1.0f32.to_bits()));
}

#[test]
fn shift_goes_by_distances() {
    let config = Config::new(64, 10000.0, Pairing::Halves).with_angle(Angle::Exact);
    let rope = config.build().unwrap();
    let x: Vec<f32> = Random(11).vec(2 * 3 * 64);
    let at = |x: &[f32], operation, positions| {
        let mut x = x.to_vec();
        let step = Step::new(2, 3, positions).with_operation(operation);
        rope.apply(&step, ViewMut::bshd(&mut x, 1), ()).map(|()| x)
    };
    let keys = at(&x, Operation::Forward, Positions::Offset(100)).unwrap();
    let moved = at(&keys, Operation::Shift, Positions::Same(-37)).unwrap();
    assert_eq!(moved, at(&keys, Operation::Shift, Positions::tokens(&[-37; 3])).unwrap());
    let want = at(&x, Operation::Forward, Positions::Offset(63)).unwrap();
    assert!(moved.iter().zip(&want).all(|(x, y)| (x - y).abs() < 1e-6));
    let same = at(&x, Operation::Forward, Positions::Same(5)).unwrap();
    assert_eq!(same, at(&x, Operation::Forward, Positions::tokens(&[5; 3])).unwrap());
    let rows = |positions| {
        let mut out = vec![0.0f32; 2 * 3 * 64];
        let step = Step::new(2, 3, positions);
        rope.fill_cos_sin(&step, CosSinMut::packed(&mut out)).unwrap();
        out
    };
    assert_eq!(rows(Positions::Same(5)), rows(Positions::tokens(&[5; 3])));
    for positions in [Positions::Offset(-37), Positions::seq_offsets(&[-37; 2])] {
        refused(at(&keys, Operation::Shift, positions).map(|_| ()), "Positions::Same moves all");
    }
}

/// What a message says is what was given, also beyond C's numbers.
#[test]
fn strides_beyond_c_are_named_as_given() {
    let rope = rope(64);
    let mut x = vec![1.0f32; 3 * 2 * 64];
    let step = Step::new(1, 3, Positions::Offset(0));
    let strides = Strides { batch: usize::MAX, token: 128, head: 64 };
    let max = usize::MAX.to_string();
    refused(rope.apply(&step, ViewMut::strided(&mut x, 2, strides), ()), &max);
    let ids = Positions::Strided { ids: (&[1i32; 3]).into(), axis: usize::MAX, batch: 0, token: 1 };
    refused(rope.apply(&Step::new(1, 3, ids), ViewMut::bshd(&mut x, 2), ()), &max);
    let rows = CosSin::packed(&[1.0f32; 64]).with_stride(usize::MAX);
    let one = Step::with_rows(1, 1, rows);
    refused(rope.apply(&one, ViewMut::bshd(&mut x[..64], 1), ()), &max);
    let far = (1usize << 32) + 1;
    refused(rope.info(far).map(|_| ()), "freq_set (4294967297) must not be beyond 2147483647");
    refused(rope.inv_freq(far).map(|_| ()), "freq_set (4294967297)");
    refused(Pool::new(far).map(|_| ()), "threads (4294967297)");
}

#[test]
fn rows_give_the_bits_of_positions() {
    let mut random = Random(5);
    let rope = rope(128);
    let (q, ids) = (random.vec::<bf16>(2 * 3 * 4 * 128), [5i64, 6, 7, 1000, 1001, 1002]);
    let step = Step::new(2, 3, Positions::batch_tokens(&ids));
    let mut want = q.clone();
    rope.apply(&step, ViewMut::bshd(&mut want, 4), ()).unwrap();

    let mut rows = vec![0.0f32; 6 * 128];
    let (mut cos, mut sin) = (vec![0.0f32; 6 * 64], vec![0.0f32; 6 * 64]);
    rope.fill_cos_sin(&step, CosSinMut::packed(&mut rows)).unwrap();
    rope.fill_cos_sin(&step, CosSinMut::split(&mut cos, &mut sin)).unwrap();
    for rows in [CosSin::packed(&rows), CosSin::split(&cos, &sin)] {
        let mut got = q.clone();
        rope.apply(&Step::with_rows(2, 3, rows), ViewMut::bshd(&mut got, 4), ()).unwrap();
        assert_eq!(got, want);
    }
}

#[test]
fn short_call_gives_the_bits_of_the_full_one() {
    let mut random = Random(6);
    let rope = rope(64);
    let (q, k) = (random.vec::<f32>(7 * 4 * 64), random.vec::<f32>(7 * 2 * 64));
    let ids = [3i64, -1, 4, i64::MAX, 1 << 40, 0, 2];
    let (mut q1, mut k1, mut q2, mut k2) = (q.clone(), k.clone(), q, k);
    rope.apply_thd(&ids, &mut q1, 4, &mut k1, 2).unwrap();
    let step = Step::new(1, 7, Positions::tokens(&ids));
    rope.apply(&step, ViewMut::bshd(&mut q2, 4), ViewMut::bshd(&mut k2, 2)).unwrap();
    assert_eq!((q1, k1), (q2, k2));
}

#[test]
fn gradient_inverse_and_shift_differ_by_the_attention_factor() {
    let yarn = Yarn::new(32.0, 4096);
    let config = Config::new(32, 10000.0, Pairing::Halves).with_angle(Angle::Exact);
    let rope = config.with_scaling(Scaling::Yarn(yarn)).build().unwrap();
    let a = rope.info(0).unwrap().attention_factor as f32;
    assert!(a > 1.3);
    let x: Vec<f32> = Random(7).vec(6 * 2 * 32);
    let step = Step::new(1, 6, Positions::Offset(40));
    let apply = |x: &[f32], step: &Step, operation| {
        let mut y = vec![0.0f32; x.len()];
        let output = ViewMut::bshd(&mut y, 2);
        rope.apply(&step.with_operation(operation), (View::bshd(x, 2), output), ()).unwrap();
        y
    };
    let near = |x: &[f32], y: &[f32]| x.iter().zip(y).all(|(x, y)| (x - y).abs() < 2e-6);
    let y = apply(&x, &step, Operation::Forward);
    assert!(near(&apply(&y, &step, Operation::Inverse), &x));
    let scaled: Vec<f32> = x.iter().map(|x| x * a * a).collect();
    assert!(near(&apply(&y, &step, Operation::Backward), &scaled));
    let later = Step::new(1, 6, Positions::Offset(90));
    let moved = apply(&y, &Step::new(1, 6, Positions::tokens(&[50; 6])), Operation::Shift);
    assert!(near(&moved, &apply(&x, &later, Operation::Forward)));
}

#[test]
fn packed_buffers_turn_in_place() {
    let rope = rope(64);
    let (tokens, row) = (9, 10 * 64);
    let buffer: Vec<bf16> = Random(8).vec(tokens * row);
    let strides = Strides { token: row, head: 64, batch: 0 };
    let step = Step::new(1, tokens, Positions::Offset(100));
    let q = Part::new(0, 6, strides);
    let k = Part::new(6 * 64, 2, strides);
    let mut got = buffer.clone();
    rope.apply_packed(&step, &mut got, q, k).unwrap();
    for t in 0..tokens {
        let mut want = buffer[t * row..][..8 * 64].to_vec();
        rope.apply_thd(&[100 + t as i64], &mut want, 8, &mut [], 0).unwrap();
        assert_eq!(got[t * row..][..8 * 64], want);
        assert_eq!(got[t * row..][8 * 64..row], buffer[t * row..][8 * 64..row]); // v
    }
    let inside = Part::new(5 * 64, 2, strides);
    refused(rope.apply_packed(&step, &mut got, q, inside), "overlaps");
    refused(rope.apply_packed(&step, &mut got, q, q), "overlaps");
    let last = Part::new(9 * 64 + 1, 1, strides);
    refused(
        rope.apply_packed(&step, &mut got, q, last),
        "needs 5184 elements or more, and its slice has 5183",
    );
    let beyond = Part::new(usize::MAX, 2, strides);
    refused(rope.apply_packed(&step, &mut got, q, beyond), "begins at");
}

#[test]
fn latent_attention_turns_its_span() {
    // DeepSeek: the last 64 of 192 channels of q, and one k_pe head of 64 written into every k head.
    let (tokens, heads, lora) = (3, 4, 512);
    let rope = Config::new(192, 10000.0, Pairing::InterleavedToHalves)
        .with_rotary_dim(64)
        .with_rotary_offset(128)
        .build()
        .unwrap();
    let kv: Vec<f32> = Random(9).vec(tokens * (lora + 64));
    let old: Vec<f32> = Random(10).vec(tokens * heads * 192);
    let (mut q, mut k) = (old.clone(), old.clone());
    let one = Strides { token: lora + 64, head: 0, batch: 0 };
    let k_pe = View::strided(&kv[lora..], heads, one).span();
    let step = Step::new(1, tokens, Positions::Offset(5));
    rope.apply(&step, ViewMut::bshd(&mut q, heads), (k_pe, ViewMut::bshd(&mut k, heads))).unwrap();
    for t in 0..tokens {
        let angles = common::angles(&rope, 5 + t as i64);
        let pe = &kv[t * (lora + 64) + lora..][..64];
        let want = common::rotate_head(pe, 0, Pairing::InterleavedToHalves, &angles, 1.0).0;
        for h in 0..heads {
            let at = (t * heads + h) * 192;
            assert_eq!(k[at..at + 128], old[at..at + 128]);
            let pairs = k[at + 128..at + 192].iter().zip(&want);
            assert!(pairs.into_iter().all(|(k, w)| (f64::from(*k) - w).abs() < 2e-6));
        }
    }
    assert_ne!(q, old);
}

#[test]
fn several_axes_and_sets() {
    let config = Config::new(128, 1e6, Pairing::Halves).with_mrope(&[16, 24, 24], false);
    let rope = config.build().unwrap();
    assert_eq!(rope.axes(), 3);
    let (ids, next) =
        prompt_ids(&[PromptPart { text: 1, t: 1, h: 4, w: 3, t_interval: 0 }], 0).unwrap();
    assert_eq!((ids.len(), next), (39, 5));
    let mut q: Vec<f32> = Random(11).vec(13 * 2 * 128);
    refused(rope.apply_thd(&[0; 13], &mut q, 2, &mut [], 0), "one axis");
    let mut q2 = q.clone();
    let step = Step::new(1, 13, Positions::axes_batch_tokens(&ids));
    rope.apply(&step, ViewMut::bshd(&mut q, 2), ()).unwrap();
    let by_token: Vec<f32> =
        (0..13).flat_map(|t| [0, 1, 2].map(|axis| ids[axis * 13 + t] as f32)).collect();
    let step = Step::new(1, 13, Positions::batch_tokens_axes(&by_token));
    rope.apply(&step, ViewMut::bshd(&mut q2, 2), ()).unwrap();
    assert_eq!(q, q2);

    let long = |seq_len| {
        let factors = |step: f64| (0..48).map(|i| 1.0 + step * f64::from(i)).collect::<Vec<f64>>();
        Config::new(96, 10000.0, Pairing::Halves).with_scaling(Scaling::LongRope(
            LongRope::new(factors(0.01), factors(1.3), 4096)
                .with_max_position_embeddings(131_072)
                .with_seq_len(seq_len),
        ))
    };
    let switch = long(1).next_change(1).unwrap().unwrap();
    assert_eq!(switch, 4097);
    assert_eq!(long(switch).next_change(switch).unwrap(), None);
    let both = Context::with_sets(&[long(1), long(switch)]).unwrap();
    assert_eq!(both.info(0).unwrap().freq_sets, 2);
    let x: Vec<f32> = Random(12).vec(2 * 96);
    let mut got = x.clone();
    let step = Step::new(2, 1, Positions::seq_offsets(&[99i32, 89999]));
    refused(both.apply(&step, ViewMut::bshd(&mut got, 1), ()), "freq_sets");
    let step = step.with_freq_sets(&[0, 1]);
    both.apply(&step, ViewMut::bshd(&mut got, 1), ()).unwrap();
    for (config, id, range) in [(long(1), 99, 0..96), (long(switch), 89999, 96..192)] {
        let mut want = x[range.clone()].to_vec();
        config.build().unwrap().apply_thd(&[id], &mut want, 1, &mut [], 0).unwrap();
        assert_eq!(got[range], want);
    }
    refused(Context::with_sets(&[]), "count (0)");
    assert!(Context::with_sets(&vec![long(1); 257]).is_err());
}

#[test]
fn packed_sequences_continue_at_their_lengths() {
    let rope = rope(80);
    let x: Vec<f32> = Random(13).vec(11 * 4 * 80);
    let mut got = x.clone();
    let step = Step::new(1, 11, Positions::seq_offsets(&[0i32, 900, 131072]));
    let step = step.with_cu_seqlens(&[0, 5, 5, 11]);
    rope.apply(&step, ViewMut::bshd(&mut got, 4), ()).unwrap();
    let ids: Vec<i64> = (0..5).chain(131072..131078).collect();
    let mut want = x;
    rope.apply_thd(&ids, &mut want, 4, &mut [], 0).unwrap();
    assert_eq!(got, want);
}

#[test]
fn models_name_the_kind_of_every_layer() {
    let json = r#"{"model_type": "smollm3", "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 4, "rope_theta": 2000000.0, "no_rope_layer_interval": 4,
        "num_hidden_layers": 8}"#;
    let model = Model::from_json(json).unwrap();
    let ropes = model.contexts(1).unwrap();
    assert_eq!(ropes.len(), model.layer_types().len());
    let nope = model.find("nope").unwrap();
    assert!(model.config(nope).unwrap().is_nope());
    assert_eq!(model.find("no such kind"), None);
    for layer in 0..8 {
        let kind = model.layer_type(layer).unwrap();
        assert_eq!(kind == nope, layer % 4 == 3);
        let x: Vec<f32> = Random(14).vec(2 * 128);
        let mut q = x.clone();
        ropes[kind].apply_thd(&[17], &mut q, 2, &mut [], 0).unwrap();
        assert_eq!(q == x, kind == nope);
    }
    refused(model.layer_type(8), "layer (8)");
    refused(model.layer_type(usize::MAX), "layer");
    refused(model.config(99), "type (99)");
    refused(Config::from_json(json), "2 kinds of RoPE");

    let bare = Config::from_json(r#"{"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}"#);
    let bare = bare.unwrap().with_head_dim(64).with_pairing(Pairing::Halves);
    assert_eq!(bare.build().unwrap().inv_freq(0).unwrap()[0], 0.25);
    for text in ["", "{", "[]", "\0", "{\"model_type\": 3}"] {
        assert!(matches!(Model::from_json(text), Err(Error::Parse(_))), "{text}");
    }

    // Tables are copied: they outlive the model.
    let json = format!(
        r#"{{"model_type": "phi3", "hidden_size": 128, "num_attention_heads": 2,
            "num_hidden_layers": 2, "max_position_embeddings": 131072, "rope_theta": 10000.0,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {{"type": "longrope", "short_factor": {0}, "long_factor": {0}}}}}"#,
        serde_json::json!(vec![1.5; 32])
    );
    let config = Config::from_json(&json).unwrap();
    assert!(config.needs_seq_len());
    let rope = config.with_seq_len(10).build().unwrap();
    assert!((rope.inv_freq(0).unwrap()[0] - 1.0 / 1.5).abs() < 1e-7);
}

#[test]
fn one_context_serves_many_threads() {
    let rope = Arc::new(rope(64));
    let x: Vec<f32> = Random(16).vec(4 * 64);
    let mut want = x.clone();
    rope.apply_thd(&[77], &mut want, 4, &mut [], 0).unwrap();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (rope, x, want) = (rope.clone(), x.clone(), want.clone());
            thread::spawn(move || {
                for _ in 0..2000 {
                    let mut q = x.clone();
                    rope.apply_thd(&[77], &mut q, 4, &mut [], 0).unwrap();
                    assert_eq!(q, want);
                }
            })
        })
        .collect();
    drop(rope);
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn eager_rounding_is_that_of_single_operations() {
    let config = Config::new(64, 10000.0, Pairing::Halves).with_rounding(Rounding::Eager);
    let rope = config.build().unwrap();
    let x: Vec<bf16> = Random(17).vec(64);
    let mut got = x.clone();
    rope.apply_thd(&[1000], &mut got, 1, &mut [], 0).unwrap();
    for (i, angle) in common::angles(&rope, 1000).into_iter().enumerate() {
        let (c, s) = (bf16::from_f64(angle.cos()), bf16::from_f64(angle.sin()));
        assert_eq!(got[i], x[i] * c - x[i + 32] * s);
        assert_eq!(got[i + 32], x[i + 32] * c + x[i] * s);
    }
}

#[test]
fn native_rounding_is_that_of_f16_instructions() {
    let config = Config::new(64, 10000.0, Pairing::Halves).with_rounding(Rounding::Native);
    let rope = config.build().unwrap();
    let x: Vec<f16> = Random(18).vec(64);
    let mut got = x.clone();
    rope.apply_thd(&[1000], &mut got, 1, &mut [], 0).unwrap();
    // The sum of a product and an f16, rounded once.
    let fma = |a: f16, b: f16, c: f16| f16::from_f64(a.to_f64() * b.to_f64() + c.to_f64());
    for (i, angle) in common::angles(&rope, 1000).into_iter().enumerate() {
        let (c, s) = (f16::from_f64(angle.cos()), f16::from_f64(angle.sin()));
        assert_eq!(got[i], fma(x[i], c, -(x[i + 32] * s)));
        assert_eq!(got[i + 32], fma(x[i + 32], c, x[i] * s));
    }
    let error = rope.apply_thd(&[1000], &mut [0f32; 64], 1, &mut [], 0).unwrap_err();
    assert!(error.to_string().contains("must be DType::F16"), "{error}");
}
