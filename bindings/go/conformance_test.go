package rope

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestWorkedExamples(t *testing.T) {
	var data struct {
		Theta float64
		Cases []struct {
			Name     string
			Shape    [4]int
			X        []float32
			Expected []float64
		}
		Table struct{ Cos, Sin [][]float64 } `json:"freqs_cis_5x4"`
	}
	testData(t, "worked-examples.json", &data)
	if len(data.Cases) == 0 {
		t.Fatal("no cases")
	}
	for _, test := range data.Cases {
		c := mustNew(t, Config{HeadDim: test.Shape[3], Theta: data.Theta, Pairing: PairingInterleaved})
		step := Step{Batch: test.Shape[0], Tokens: test.Shape[1], Positions: Offset(0)}
		if err := ApplyQK(c, BSHD(test.X, test.Shape[2]), Tensor[float32]{}, step); err != nil {
			t.Fatal(err)
		}
		for i, want := range test.Expected {
			if math.Abs(float64(test.X[i])-want) > 1e-4 {
				t.Fatalf("%s[%d]: %v, want %v", test.Name, i, test.X[i], want)
			}
		}
	}

	tokens, pairs := len(data.Table.Cos), len(data.Table.Cos[0])
	c := mustNew(t, Config{HeadDim: 2 * pairs, Theta: data.Theta, Pairing: PairingInterleaved})
	rows := make([]float32, tokens*2*pairs)
	step := Step{Batch: 1, Tokens: tokens, Positions: Offset(0)}
	if err := FillCosSin(c, step, Complex(rows)); err != nil {
		t.Fatal(err)
	}
	for p := range tokens {
		for i := range pairs {
			at := (p*pairs + i) * 2
			if math.Abs(float64(rows[at])-data.Table.Cos[p][i]) > 1e-4 ||
				math.Abs(float64(rows[at+1])-data.Table.Sin[p][i]) > 1e-4 {
				t.Fatalf("position %d, pair %d: %v", p, i, rows[at:at+2])
			}
		}
	}
}

type parameters struct {
	RopeType, Type  string
	RopeTheta       float64
	Factor          float64
	PartialFactor   *float64
	AttentionFactor float64
	BetaFast        float64
	BetaSlow        float64
	MScale          float64
	MScaleAllDim    float64
	LowFreqFactor   float64
	HighFreqFactor  float64
	OriginalMax     int64
}

func parametersOf(t *testing.T, raw json.RawMessage) parameters {
	t.Helper()
	var p struct {
		RopeType        string   `json:"rope_type"`
		Type            string   `json:"type"`
		RopeTheta       float64  `json:"rope_theta"`
		Factor          float64  `json:"factor"`
		PartialFactor   *float64 `json:"partial_rotary_factor"`
		AttentionFactor float64  `json:"attention_factor"`
		BetaFast        float64  `json:"beta_fast"`
		BetaSlow        float64  `json:"beta_slow"`
		MScale          float64  `json:"mscale"`
		MScaleAllDim    float64  `json:"mscale_all_dim"`
		LowFreqFactor   float64  `json:"low_freq_factor"`
		HighFreqFactor  float64  `json:"high_freq_factor"`
		OriginalMax     int64    `json:"original_max_position_embeddings"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		t.Fatal(err)
	}
	if p.RopeType == "" {
		p.RopeType = p.Type
	}
	return parameters(p)
}

// configOf writes rope_parameters by hand, as a program without config.json would.
func configOf(t *testing.T, p parameters, headDim int, maxPositions, seqLen int64) Config {
	t.Helper()
	cfg := Config{HeadDim: headDim, Theta: p.RopeTheta, Pairing: PairingHalves, Factor: p.Factor,
		AttentionFactor: p.AttentionFactor}
	if p.PartialFactor != nil {
		cfg.RotaryDim = int(float64(headDim) * *p.PartialFactor)
	}
	original := p.OriginalMax
	if original == 0 {
		original = maxPositions
	}
	switch p.RopeType {
	case "default":
	case "linear":
		cfg.Scaling = ScalingLinear
	case "dynamic":
		cfg.Scaling, cfg.MaxPositionEmbeddings, cfg.SeqLen = ScalingDynamic, maxPositions, seqLen
	case "yarn":
		cfg.Scaling, cfg.OriginalMaxPositionEmbeddings = ScalingYarn, original
		cfg.BetaFast, cfg.BetaSlow = p.BetaFast, p.BetaSlow
		cfg.MScale, cfg.MScaleAllDim = p.MScale, p.MScaleAllDim
	case "llama3":
		cfg.Scaling, cfg.OriginalMaxPositionEmbeddings = ScalingLlama3, original
		cfg.LowFreqFactor, cfg.HighFreqFactor = p.LowFreqFactor, p.HighFreqFactor
	case "proportional":
		cfg.Scaling = ScalingProportional
	default:
		t.Fatalf("no case for %q", p.RopeType)
	}
	return cfg
}

func checkFrequencies(t *testing.T, name string, cfg Config, want []float64, factor float64) {
	t.Helper()
	for angle, bound := range map[Angle]float64{AngleFloat32: 1.3e-6, AngleExact: 1e-11} {
		cfg.Angle = angle
		c, err := New(cfg)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := c.InvFreq(0)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%s: %d frequencies, want %d; %v", name, len(got), len(want), err)
		}
		for i := range got {
			if !(math.Abs(got[i]-want[i]) <= bound*math.Abs(want[i])) {
				t.Errorf("%s[%d]: %v, want %v", name, i, got[i], want[i])
			}
		}
		if info, err := c.Info(0); err != nil || math.Abs(info.AttentionFactor-factor) > 1e-12 {
			t.Errorf("%s: attention factor %v, want %v; %v", name, info.AttentionFactor, factor, err)
		}
		c.Close()
	}
}

func TestGoldenFrequencies(t *testing.T) {
	var data struct {
		Golden []struct {
			Name, Kind       string
			Config           map[string]any
			RopeParameters   json.RawMessage `json:"rope_parameters"`
			SeqLen           int64           `json:"seq_len"`
			AttentionScaling float64         `json:"attention_scaling"`
			Want             []float64       `json:"expected_ref_fp64"`
		}
		Derived []struct {
			Name             string
			RotaryDim        int             `json:"rotary_dim"`
			RopeTheta        float64         `json:"rope_theta"`
			RopeParameters   json.RawMessage `json:"rope_parameters"`
			SeqLen           int64           `json:"seq_len"`
			AttentionScaling float64         `json:"attention_scaling"`
			InvFreq          []float64       `json:"inv_freq"`
		}
	}
	testData(t, "golden.json", &data)
	checked := 0
	for _, record := range data.Golden {
		if record.Kind != "inv_freq" {
			continue
		}
		headDim := int(record.Config["hidden_size"].(float64) / record.Config["num_attention_heads"].(float64))
		if d, ok := record.Config["head_dim"]; ok {
			headDim = int(d.(float64))
		}
		maxPositions := int64(record.Config["max_position_embeddings"].(float64))
		cfg := configOf(t, parametersOf(t, record.RopeParameters), headDim, maxPositions, record.SeqLen)
		checkFrequencies(t, record.Name, cfg, record.Want, record.AttentionScaling)

		// The same through the parser: as one model's config.json.
		record.Config["model_type"] = "llama"
		record.Config["num_hidden_layers"] = 2
		record.Config["rope_parameters"] = record.RopeParameters
		text, err := json.Marshal(record.Config)
		if err != nil {
			t.Fatal(err)
		}
		model, err := FromJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		if cfg, err = model.Config(0); err != nil {
			t.Fatal(err)
		}
		model.Close() // the config does not need it
		if cfg.NeedsSeqLen() {
			cfg.SeqLen = record.SeqLen
		}
		checkFrequencies(t, record.Name+" parsed", cfg, record.Want, record.AttentionScaling)
		checked++
	}
	if checked != 10 {
		t.Errorf("%d golden records", checked)
	}
	checked = 0
	for _, record := range data.Derived {
		if record.InvFreq == nil {
			continue
		}
		p := parametersOf(t, record.RopeParameters)
		if p.RopeType == "dynamic-alpha" {
			continue // the formula of alpha is the parser's business
		}
		p.RopeTheta = record.RopeTheta
		cfg := configOf(t, p, record.RotaryDim, 32768, record.SeqLen)
		checkFrequencies(t, record.Name, cfg, record.InvFreq, record.AttentionScaling)
		checked++
	}
	if checked < 8 {
		t.Errorf("%d derived records", checked)
	}
}

func TestGoldenPositionIDs(t *testing.T) {
	var data struct {
		Golden []struct {
			Name string
			Want [][]int64 `json:"expected_thw"`
		}
	}
	testData(t, "golden.json", &data)
	image := func(frames int32) PromptPart { return PromptPart{Text: 1, T: frames, H: 4, W: 3} }
	tests := map[string][]PromptPart{
		"qwen2_vl_image_position_ids": {image(1), {Text: 1}},
		"qwen2_vl_video_position_ids": {image(2), {Text: 1}},
		"qwen3_vl_video_position_ids": {image(1), image(1), {Text: 1}},
	}
	checked := 0
	for _, record := range data.Golden {
		runs, ok := tests[record.Name]
		if !ok {
			continue
		}
		ids, _, err := PromptIDs(runs, 0)
		if err != nil || !slices.Equal(ids, slices.Concat(record.Want...)) {
			t.Errorf("%s: %v, %v", record.Name, ids, err)
		}
		checked++
	}
	if checked != len(tests) {
		t.Errorf("%d records", checked)
	}
}

// randomCase is one random call: sizes, layout, pairing, span, positions, in and out of place.
func randomCase[T Element](t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	headDim := 2 * (1 + r.IntN(70))
	rotaryDim := 2 * (1 + r.IntN(headDim/2))
	rotaryOffset := r.IntN(headDim-rotaryDim+1) / 2 * 2
	pairing := []Pairing{PairingHalves, PairingInterleaved, PairingInterleavedToHalves}[r.IntN(3)]
	a := []float64{1, 1.25}[r.IntN(2)]
	c := mustNew(t, Config{HeadDim: headDim, Theta: []float64{1e4, 5e5}[r.IntN(2)], Pairing: pairing,
		RotaryDim: rotaryDim, RotaryOffset: rotaryOffset, AttentionFactor: a})

	batch, tokens, heads, gap := 1+r.IntN(3), 1+r.IntN(6), 1+r.IntN(5), r.IntN(5)
	row := (headDim+gap)*heads + gap
	tensor := Tensor[T]{Heads: heads, Layout: Layout(1 + r.IntN(4))}
	size := batch * tokens * heads * headDim
	if tensor.Layout == LayoutStrided {
		tensor.Strides = Strides{Head: headDim + gap, Token: row, Batch: row * tokens}
		size = row * tokens * batch
	}
	x := random[T](r, size)
	at := func(b, token, h int) int {
		switch tensor.Layout {
		case LayoutBSHD:
			return ((b*tokens+token)*heads + h) * headDim
		case LayoutBHSD:
			return ((b*heads+h)*tokens + token) * headDim
		case LayoutSBHD:
			return ((token*batch+b)*heads + h) * headDim
		}
		return b*tensor.Strides.Batch + token*tensor.Strides.Token + h*tensor.Strides.Head
	}

	ids, narrow := make([]int64, batch*tokens), make([]int32, batch*tokens)
	limit := []int{16, 4096, 1 << 20}[r.IntN(3)]
	for i := range ids {
		ids[i] = int64(r.IntN(limit) - 7)
		narrow[i] = int32(ids[i])
	}
	var positions Positions
	kind := r.IntN(6)
	switch kind {
	case 0:
		positions = Offset(ids[0])
	case 1:
		positions = SeqOffsets(ids[:batch])
	case 2:
		positions = SeqOffsets(narrow[:batch])
	case 3:
		positions = TokenIDs(ids[:tokens])
	case 4:
		positions = BatchTokenIDs(narrow)
	default:
		positions = BatchTokenIDs(ids)
	}
	position := func(b, token int) int64 {
		switch kind {
		case 0:
			return ids[0] + int64(token)
		case 1, 2:
			return ids[b] + int64(token)
		case 3:
			return ids[token]
		}
		return ids[b*tokens+token]
	}

	step := Step{Batch: batch, Tokens: tokens, Positions: positions}
	got, none := tensor, Tensor[T]{}
	got.Data = slices.Clone(x)
	var err error
	switch r.IntN(3) {
	case 0:
		err = ApplyQK(c, got, none, step)
	case 1:
		err = ApplyQK(c, none, got, step)
	default:
		input := tensor
		input.Data = slices.Clone(x)
		err = ApplyQKTo(c, got, none, input, none, step)
	}
	if err != nil {
		t.Fatalf("case %d: %v", seed, err)
	}
	touched := make([]bool, size)
	for b := range batch {
		for token := range tokens {
			angles := anglesAt(t, c, position(b, token))
			for h := range heads {
				first := at(b, token, h)
				want, bound := rotateHead(x[first:first+headDim], rotaryOffset, pairing, angles, a)
				for i := range headDim {
					touched[first+i] = true
					if e := math.Abs(toFloat(got.Data[first+i]) - want[i]); !(e <= bound[i]) {
						t.Fatalf("case %d: off by %g, allowed %g", seed, e, bound[i])
					}
				}
			}
		}
	}
	for i := range x {
		if !touched[i] && got.Data[i] != x[i] {
			t.Fatalf("case %d: element %d lies between heads", seed, i)
		}
	}

	// Undone, the values are back to their precision.
	step.Operation = OperationInverse
	if err := ApplyQK(c, got, none, step); err != nil {
		t.Fatal(err)
	}
	for i := range x {
		if !(math.Abs(toFloat(got.Data[i])-toFloat(x[i])) <= 6*halfULP[T]()) {
			t.Fatalf("case %d: %v came back as %v", seed, toFloat(x[i]), toFloat(got.Data[i]))
		}
	}
}

func TestRandomCases(t *testing.T) {
	t.Run("float32", func(t *testing.T) {
		for seed := range uint64(400) {
			randomCase[float32](t, seed)
		}
	})
	t.Run("Float16", func(t *testing.T) {
		for seed := range uint64(400) {
			randomCase[Float16](t, 1000+seed)
		}
	})
	t.Run("BFloat16", func(t *testing.T) {
		for seed := range uint64(400) {
			randomCase[BFloat16](t, 2000+seed)
		}
	})
}
