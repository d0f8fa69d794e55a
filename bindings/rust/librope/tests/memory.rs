//! A million calls leave nothing behind: the memory of the process stays where it was.
#![cfg(target_os = "linux")]

use librope::{CacheShape, Config, Model, Pairing, Positions, Shape, Slots, Step, ViewMut};

/// Bytes of this process in main memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has /proc");
    let pages: usize = statm.split(' ').nth(1).expect("the second number").parse().unwrap();
    pages * 4096
}

/// The growth over `calls`, after as many to warm up by a tenth.
fn growth(calls: usize, mut call: impl FnMut(usize)) -> usize {
    (0..calls / 10).for_each(&mut call);
    let before = resident();
    (0..calls).for_each(&mut call);
    resident().saturating_sub(before)
}

// One test, because tests of one file run side by side and share what is measured.
#[test]
fn a_million_calls_leak_nothing() {
    const ENOUGH: usize = 1 << 20; // a leak of one byte per call would show
    let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
    let mut q = vec![1.0f32; 64];
    let grown = growth(1_000_000, |i| {
        rope.apply_thd(&[i as i64], &mut q, 1, &mut [], 0).unwrap();
    });
    assert!(grown < ENOUGH, "apply_thd: {grown} bytes");

    let grown = growth(1_000_000, |i| {
        let step = Step::new(1, 1, Positions::Offset(i as i64));
        rope.apply(&step, ViewMut::bshd(&mut q, 1), ()).unwrap();
    });
    assert!(grown < ENOUGH, "apply: {grown} bytes");

    let grown = growth(300_000, |_| {
        let step = Step::new(1, 1, Positions::tokens(&[1i64, 2]));
        assert!(rope.apply(&step, ViewMut::bshd(&mut q, 1), ()).is_err());
        assert!(rope.apply(&step.with_cu_seqlens(&[0, 3]), (), ()).is_err());
    });
    assert!(grown < ENOUGH, "errors: {grown} bytes");

    let grown = growth(300_000, |i| {
        let step = Step::new(1, 1, Positions::Offset(i as i64));
        let call = rope.prepare(&step, Shape::<f32>::bshd(1), ()).unwrap();
        call.apply(&mut q, ()).unwrap();
        assert!(call.apply(&mut q[..63], ()).is_err());
    });
    assert!(grown < ENOUGH, "prepared calls: {grown} bytes");

    let page = Shape::<f32>::nhd(1);
    let (starts, mut keys) = ([0], vec![0.0f32; 64]);
    let grown = growth(300_000, |i| {
        let step = Step::new(1, 1, Positions::Offset(i as i64)).with_slots(Slots::linear(&starts));
        let cache = CacheShape::new(1, 1, page, ());
        let call = rope.prepare_append(&step, (), Shape::<f32>::bshd(1), (), cache).unwrap();
        call.apply((), &q, (), (&mut keys, ())).unwrap();
        assert!(call.apply((), &q, (), (&mut keys[..63], ())).is_err());
    });
    assert!(grown < ENOUGH, "prepared appends: {grown} bytes");

    let json = r#"{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1,
        "num_hidden_layers": 2, "rope_theta": 10000.0}"#;
    let grown = growth(20_000, |_| {
        let model = Model::from_json(json).unwrap();
        let config = model.config(0).unwrap();
        drop(model);
        config.build().unwrap();
        Model::from_json("{").unwrap_err();
    });
    assert!(grown < ENOUGH, "models and contexts: {grown} bytes");
}
