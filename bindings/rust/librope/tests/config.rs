//! What a configuration says of itself, and up to which length it is right.

use librope_sys as sys;

use librope::{
    Angle, Config, Context, DType, Device, Error, LatentGrid, Latents, LongRope, Model, Pairing,
    Rounding, Scaling, Yarn,
};

#[test]
fn getters_say_what_was_set() {
    let plain = Config::new(128, 5e5, Pairing::Interleaved);
    assert_eq!((plain.head_dim(), plain.theta()), (128, 5e5));
    assert_eq!(plain.pairing(), Some(Pairing::Interleaved));
    assert_eq!((plain.rotary_dim(), plain.rotary_offset()), (128, 0));
    assert_eq!((plain.angle(), plain.rounding()), (Angle::Float32, Rounding::Float32));
    assert_eq!((plain.inv_freq_dtype(), plain.attention_factor()), (None, 0.0));
    assert_eq!((plain.axes(), plain.mrope_section()), (1, vec![]));
    assert!(plain.pair_axis().is_empty() && plain.freq_factors().is_empty());
    assert!(plain.inv_freq().is_empty() && plain.device() == Device::Cpu);

    let config = Config::from_inv_freq(192, Pairing::Halves, [0.25; 32])
        .with_rotary_dim(64)
        .with_rotary_offset(128)
        .with_angle(Angle::Exact)
        .with_rounding(Rounding::Eager)
        .with_inv_freq_dtype(DType::Bf16)
        .with_attention_factor(1.5)
        .with_freq_factors([2.0; 32])
        .with_pair_axis(2, [1; 32])
        .with_device(Device::Cuda(3));
    assert_eq!((config.rotary_dim(), config.rotary_offset()), (64, 128));
    assert_eq!((config.angle(), config.rounding()), (Angle::Exact, Rounding::Eager));
    assert_eq!((config.inv_freq_dtype(), config.attention_factor()), (Some(DType::Bf16), 1.5));
    assert_eq!((config.inv_freq(), config.freq_factors()), (&[0.25; 32][..], &[2.0; 32][..]));
    assert_eq!((config.axes(), config.pair_axis()), (2, &[1; 32][..]));
    assert_eq!(config.device(), Device::Cuda(3));
    assert_eq!(Config::nope(64).pairing(), None);
}

/// Each with numbers that it takes.
fn scalings() -> [Scaling; 10] {
    [
        Scaling::Default,
        Scaling::Linear { factor: 4.0 },
        Scaling::Dynamic { factor: 2.0, max_position_embeddings: 2048, seq_len: 4096 },
        Scaling::DynamicSteps { factor: 1.0, max_position_embeddings: 2048, seq_len: 4096 },
        Scaling::Yarn(Yarn::new(40.0, 4096).with_beta(30.0, 2.0).with_mscale(0.7, 0.8)),
        Scaling::Yarn(Yarn::new(32.0, 4096).with_no_truncate()),
        Scaling::LongRope(
            LongRope::new([1.5; 4], [3.0; 4], 4096)
                .with_max_position_embeddings(131_072)
                .with_factor(16.0)
                .with_seq_len(9),
        ),
        Scaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        },
        Scaling::Proportional { factor: 2.0 },
        Scaling::Nope,
    ]
}

/// Whether the library knows a scaling of this number, whatever else that may need.
fn in_library(scaling: i32) -> bool {
    let config = Config::new(8, 1e4, Pairing::Halves);
    let raw = sys::rope_config { scaling, ..*config.as_raw() };
    let mut next = 0;
    // SAFETY: the struct is complete, `next` is writable.
    let status = unsafe { sys::rope_config_next_change(&raw const raw, 1, &raw mut next) };
    status != sys::ROPE_ERROR_UNSUPPORTED
}

#[test]
fn every_scaling_of_the_library_has_its_variant() {
    let mut here = scalings()
        .map(|scaling| Config::new(8, 1e4, Pairing::Halves).with_scaling(scaling).as_raw().scaling);
    here.sort_unstable();
    let known: Vec<i32> = (-1..100).filter(|&scaling| in_library(scaling)).collect();
    let mut here = here.to_vec();
    here.dedup(); // YaRN is there twice
    assert_eq!(here, known);
}

#[test]
fn scalings_are_read_as_they_were_written() {
    for scaling in scalings() {
        // After another, none of whose numbers may stay.
        let other = Scaling::Yarn(Yarn::new(9.0, 9).with_beta(9.0, 9.0).with_mscale(9.0, 9.0));
        let config = Config::new(8, 1e4, Pairing::Halves).with_scaling(other);
        assert_eq!(config.with_scaling(scaling.clone()).scaling(), scaling);
    }
}

#[test]
fn scalings_that_need_the_length_are_those_that_change_with_it() {
    for scaling in scalings() {
        let config = Config::new(8, 1e4, Pairing::Halves).with_scaling(scaling.clone());
        assert_eq!(config.needs_seq_len(), config.next_change(1).unwrap().is_some(), "{scaling:?}");
    }
}

#[test]
fn configurations_of_models_say_what_the_text_says() {
    let config = Config::from_json(
        r#"{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
            "num_hidden_layers": 32, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3",
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}}"#,
    )
    .unwrap();
    assert_eq!((config.head_dim(), config.theta()), (128, 5e5));
    assert_eq!(config.pairing(), Some(Pairing::Halves));
    let Scaling::Llama3 { factor, .. } = config.scaling() else { panic!("{:?}", config.scaling()) };
    assert!((factor - 8.0).abs() < 1e-12);
}

#[test]
fn sizes_beyond_c_are_named_as_given() {
    let far = (1usize << 32) + 64;
    let base = || Config::new(64, 1e4, Pairing::Halves);
    for (config, field) in [
        (Config::new(far, 1e4, Pairing::Halves), "head_dim"),
        (Config::nope(far), "head_dim"),
        (base().with_head_dim(far), "head_dim"),
        (base().with_rotary_dim(far), "rotary_dim"),
        (base().with_rotary_offset(far), "rotary_offset"),
        (base().with_mrope(&[16, far], false), "mrope_section[1]"),
        (base().with_pair_axis(far, vec![0; 32]), "axes"),
        (base().with_device(Device::Cuda(far)), "device_index"),
    ] {
        let error = config.build().unwrap_err();
        let want = format!("{field} (4294967360) must not be beyond 2147483647");
        assert!(error.message().contains(&want), "{error}");
        let other = config.next_change(1).unwrap_err();
        assert_eq!(other.message(), error.message().replace("build", "next_change"));
    }
    // Getters say what was given, and a value that replaces it is as good as the first.
    assert_eq!(Config::new(far, 1e4, Pairing::Halves).head_dim(), far);
    assert_eq!(Config::new(far, 1e4, Pairing::Halves).rotary_dim(), far);
    assert_eq!(base().with_rotary_dim(far).rotary_dim(), far);
    assert_eq!(base().with_rotary_offset(far).rotary_offset(), far);
    assert_eq!(base().with_mrope(&[16, far], false).mrope_section(), [16, far]);
    assert_eq!(base().with_device(Device::Cuda(far)).device(), Device::Cuda(far));
    assert!(Config::new(far, 1e4, Pairing::Halves).with_head_dim(64).build().is_ok());
    assert!(base().with_mrope(&[far, 16], true).with_mrope(&[16, 16], true).build().is_ok());
    assert!(base().with_mrope(&[far, 16], true).with_pair_axis(2, vec![1; 32]).build().is_ok());
    assert!(base().with_pair_axis(far, []).with_mrope(&[16, 16], true).build().is_ok());
    assert!(base().with_device(Device::Cuda(far)).with_device(Device::Cpu).build().is_ok());
    let model = phi3();
    let message = |error: Error| error.message().to_string();
    assert!(message(model.layer_type(far).unwrap_err()).contains("layer (4294967360)"));
    assert!(message(model.config(far).unwrap_err()).contains("layer_type (4294967360)"));
}

#[test]
fn no_frequencies_are_not_a_missing_theta() {
    let error = Config::from_inv_freq(64, Pairing::Halves, vec![]).build().unwrap_err();
    assert!(error.message().contains("inv_freq (0 entries)"), "{error}");
    assert!(Config::from_inv_freq(64, Pairing::Halves, vec![0.5; 32]).build().is_ok());
    let none = Config::new(64, 1e4, Pairing::Halves).with_freq_factors(vec![]);
    assert!(none.build().is_ok());
}

/// Engines need not know which scalings use it.
#[test]
fn every_scaling_takes_a_length() {
    let plain = Config::new(64, 1e4, Pairing::Halves).with_seq_len(5000);
    let rope = plain.build().unwrap();
    assert_eq!((rope.valid_from(), rope.valid_below()), (0, i64::MAX));
}

fn phi3() -> Model {
    let (short, long) = (vec![1.25; 32], vec![1.5; 32]);
    let json = format!(
        r#"{{"model_type": "phi3", "hidden_size": 128, "num_attention_heads": 2,
            "num_hidden_layers": 2, "max_position_embeddings": 131072, "rope_theta": 10000.0,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {{"type": "longrope", "short_factor": {short:?},
                              "long_factor": {long:?}}}}}"#
    );
    Model::from_json(json).unwrap()
}

#[test]
fn contexts_of_longrope_models_say_up_to_which_length_they_are_right() {
    let model = phi3();
    let first = |ropes: &[Context]| ropes[0].inv_freq(0).unwrap()[0];
    let short = model.contexts(1).unwrap();
    assert_eq!(short[0].valid_below(), 4097);
    assert!((first(&short) - 1.0 / 1.25).abs() < 1e-7);
    assert_eq!(model.contexts(4096).unwrap()[0].valid_below(), 4097);
    assert_eq!(model.contexts(4096).unwrap()[0].valid_from(), 0);
    assert_eq!(model.contexts(9000).unwrap()[0].valid_from(), 4097);
    let long = model.contexts(4097).unwrap();
    assert_eq!(long[0].valid_below(), i64::MAX);
    assert!((first(&long) - 1.0 / 1.5).abs() < 1e-7);
    assert!(model.contexts(0).is_err() && model.contexts(-1).is_err());
    // The length is the argument, so it need not be in the configuration as well.
    assert_eq!(model.config(0).unwrap().next_change(1), Ok(Some(4097)));

    let short = model.config(0).unwrap().with_seq_len(1);
    let both = Context::with_sets(&[short.clone(), short.with_seq_len(4097)]).unwrap();
    assert_eq!(both.info(0).unwrap().valid_below, 4097);
    assert_eq!(both.info(1).unwrap().valid_below, i64::MAX);
    assert_eq!([0, 1].map(|set| both.info(set).unwrap().valid_from), [0, 4097]);
}

#[test]
fn contexts_of_dynamic_models_change_with_every_length_beyond_training() {
    let model = Model::from_json(
        r#"{"model_type": "llama", "hidden_size": 128, "num_attention_heads": 2,
            "num_hidden_layers": 2, "max_position_embeddings": 2048, "rope_theta": 10000.0,
            "rope_scaling": {"type": "dynamic", "factor": 2.0}}"#,
    )
    .unwrap();
    assert_eq!(model.contexts(1).unwrap()[0].valid_below(), 2049);
    assert_eq!(model.contexts(3000).unwrap()[0].valid_below(), 3001);
    assert_eq!(model.contexts(3000).unwrap()[0].valid_from(), 3000);
    assert_eq!(model.config(0).unwrap().next_change(1), Ok(Some(2049)));
}

#[test]
fn contexts_of_qwen_1_change_in_steps() {
    let steps = |seq_len| {
        let (factor, max_position_embeddings) = (1.0, 2048);
        let steps = Scaling::DynamicSteps { factor, max_position_embeddings, seq_len };
        Config::new(64, 1e4, Pairing::Halves).with_scaling(steps)
    };
    assert!(steps(1).needs_seq_len());
    assert_eq!(steps(1).build().unwrap().valid_below(), 2049);
    assert_eq!(steps(3000).build().unwrap().valid_below(), 4097);
    assert_eq!(steps(3000).build().unwrap().valid_from(), 2049);
}

#[test]
fn other_models_take_any_length() {
    let json = r#"{"model_type": "llama", "hidden_size": 128, "num_attention_heads": 2,
        "num_hidden_layers": 2, "rope_theta": 10000.0}"#;
    for seq_len in [0, 1, i64::MAX] {
        let ropes = Model::from_json(json).unwrap().contexts(seq_len).unwrap();
        assert_eq!(ropes[0].valid_below(), i64::MAX);
    }
    let error = Model::from_json(json).unwrap().contexts(-1).unwrap_err();
    assert!(error.message().contains("seq_len (-1)"), "{error}"); // of no model
}

#[test]
fn keys_are_accepted_by_name() {
    let json = r#"{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
        "num_hidden_layers": 2, "rope_theta": 10000.0, "max_position_embeddings": 16384,
        "rope_scaling": {"rope_type": "yarn", "factor": 4, "attn_factor": 0.5}}"#;
    assert!(matches!(Model::from_json(json), Err(Error::Unsupported(_))));
    for key in ["attn_factor", "rope_scaling.attn_factor"] {
        let model = Model::from_json_accepting(json, &[key]).unwrap();
        assert_eq!(model.layer_types().len(), 1);
    }
    let wrong: [&[&str]; 3] =
        [&["attn_factor", "rope_theta"], &["attn_factor", "no_such_key"], &["attn\0factor"]];
    for keys in wrong {
        assert!(matches!(Model::from_json_accepting(json, keys), Err(Error::InvalidArgument(_))));
    }
}

#[test]
fn notes_are_what_programs_treat_differently() {
    let head = r#"{"model_type": "qwen2", "head_dim": 128"#;
    let chunks = format!(r#"{head}, "dual_chunk_attention_config": {{"chunk_size": 262144}}}}"#);
    let model = Model::from_json(chunks).unwrap();
    let notes: Vec<_> = model.notes().collect();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("dual_chunk_attention_config"));
    assert_eq!(Model::from_json(format!("{head}}}")).unwrap().notes().count(), 0);
}

#[test]
fn latent_ids_of_a_diffusion_model() {
    let model =
        Model::from_json(r#"{"_class_name": "QwenImageTransformer2DModel"}"#).expect("a class");
    let image = [LatentGrid { t: 1, h: 1, w: 3 }];
    let latents = Latents { grids: &image, text: 1, ..Latents::default() };
    let ids = model.latent_ids(0, &latents).expect("ids");
    assert_eq!(ids, [1.0, 0.0, 0.0, 0.0, 1.0, -1.0, -1.0, -1.0, 1.0, -2.0, -1.0, 0.0]);
    let video = model.latent_ids(0, &Latents { fps: 24.0, ..latents });
    assert!(matches!(video, Err(Error::InvalidArgument(text)) if text.contains("fps (24)")));
    // Rows and columns are not alike: one id for all axes is refused.
    let config = model.config(0).expect("a kind");
    assert!(config.ids_per_axis() && !config.clone().with_ids_per_axis(false).ids_per_axis());
    let none = model.latent_ids(1, &latents);
    assert!(matches!(none, Err(Error::InvalidArgument(_))));
}
