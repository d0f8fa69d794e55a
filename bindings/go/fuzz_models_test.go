package rope_test

// The fuzzer's models and prompts: texts of config.json and bytes of GGUF, right and wrong, and what is asked of them.

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	rope "github.com/librope/librope/bindings/go"
)

// models are texts with %d and %g where numbers go.
var models = []string{
	`{"model_type": "llama", "hidden_size": %d, "num_attention_heads": 2, "num_hidden_layers": %d, "rope_theta": %g}`,
	`{"model_type": "llama", "head_dim": %d, "num_hidden_layers": 2, "rope_theta": %g, "max_position_embeddings": %d,
		"rope_scaling": {"rope_type": "llama3", "factor": %g, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
		"original_max_position_embeddings": 8192}}`,
	`{"model_type": "phi3", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": %d, "rope_theta": 10000.0,
		"max_position_embeddings": %d, "original_max_position_embeddings": 32,
		"rope_scaling": {"type": "longrope", "short_factor": [1, 1.5, %g, 2], "long_factor": [2, 3, 4, %g]}}`,
	`{"model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 8, "head_dim": %d,
		"max_position_embeddings": 131072, "rope_theta": %g, "rope_local_base_freq": 10000,
		"rope_scaling": {"factor": %g, "rope_type": "linear"}, "num_hidden_layers": %d, "sliding_window_pattern": %d}`,
	`{"model_type": "qwen2_vl", "hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 2,
		"rope_theta": %g, "rope_scaling": {"type": "mrope", "mrope_section": [16, %d, %d]}}`,
	`{"model_type": "deepseek_v3", "qk_rope_head_dim": %d, "qk_nope_head_dim": 128, "num_hidden_layers": 3,
		"num_attention_heads": 8, "hidden_size": 1024, "rope_theta": %g, "max_position_embeddings": 163840,
		"rope_scaling": {"type": "yarn", "factor": %g, "mscale": 1.0, "mscale_all_dim": %g, "beta_fast": 32,
		"beta_slow": 1, "original_max_position_embeddings": 4096}}`,
	`{"model_type": "smollm3", "hidden_size": 2048, "num_attention_heads": 16, "rope_theta": %g,
		"no_rope_layer_interval": %d, "num_hidden_layers": %d}`,
	`{"rope_type": "dynamic", "factor": %g, "rope_theta": %g, "max_position_embeddings": %d}`,
	`{"model_type": "bert", "hidden_size": %d}`,
	`{"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [16, %d, %d]}`,
	`{"_class_name": "QwenImageTransformer2DModel", "attention_head_dim": %d}`,
	`{"_class_name": "WanTransformer3DModel", "attention_head_dim": %d}`,
	`{"_class_name": "LTXVideoTransformer3DModel"}`,
	`{"_class_name": "CosmosTransformer3DModel"}`,
}

func (s *source) json() []byte {
	var text strings.Builder
	template := pick(s, models...)
	for {
		before, rest, found := strings.Cut(template, "%")
		text.WriteString(before)
		if !found {
			break
		}
		switch {
		case s.oneIn(30):
			text.WriteString(pick(s, "null", `"x"`, "[]", "{}", "true", "-0.0", "1e400", "[1, 2]", strings.Repeat("[", 3000)))
		case rest[0] == 'd' && s.oneIn(8):
			fmt.Fprint(&text, s.hostile())
		case rest[0] == 'd':
			fmt.Fprint(&text, pick(s, 2, 4, 8, 16, 24, 64, 128))
		case s.oneIn(8):
			fmt.Fprint(&text, s.float()) // NaN and Inf are no JSON
		default:
			fmt.Fprint(&text, 1+100*s.r.Float64())
		}
		template = rest[1:]
	}
	return s.mutate([]byte(text.String()), []byte(`,"rope_theta":`))
}

// mutate changes bytes now and then, takes some out, or puts these in.
func (s *source) mutate(text, more []byte) []byte {
	if !s.oneIn(4) {
		return text
	}
	for range 1 + s.below(4) {
		if len(text) == 0 {
			break
		}
		at := s.r.IntN(len(text))
		switch s.below(3) {
		case 0:
			text[at] = byte(s.below(256))
		case 1:
			text = append(text[:at:at], text[min(len(text), at+1+s.below(30)):]...)
		default:
			text = append(text[:at:at], append(more, text[at:]...)...)
		}
	}
	return text
}

func (s *source) runs() []rope.PromptPart {
	runs := make([]rope.PromptPart, s.below(5))
	for i := range runs {
		runs[i].Text = int64(s.number(s.below(50)))
		if s.oneIn(2) {
			runs[i].T, runs[i].H, runs[i].W = int32(1+s.below(3)), int32(1+s.below(9)), int32(1+s.below(9))
			runs[i].TInterval = int32(s.below(3))
			if s.oneIn(10) {
				runs[i].H = int32(s.hostile())
			}
			if s.oneIn(10) {
				runs[i].TInterval = int32(s.hostile())
			}
		}
	}
	return runs
}

func (f *fuzzer) model(t *testing.T, s *source) {
	model, err := f.read(t, s)
	if f.judge(t, err); err != nil {
		return
	}
	defer model.Close()
	if len(model.LayerTypes()) == 0 {
		t.Fatal("no layer type")
	}
	if s.oneIn(100) {
		model.Close()
	}
	_, err = model.Notes()
	f.judge(t, err)
	kind, err := model.LayerType(s.number(s.below(3)))
	if f.judge(t, err); err == nil && kind >= len(model.LayerTypes()) {
		t.Fatal("kind", kind)
	}
	_, err = model.Config(s.number(s.below(3)))
	f.judge(t, err)
	_, err = model.Digest(s.number(s.below(3)-1), rope.Digest(s.number(1+s.below(3))))
	f.judge(t, err)
	for range 3 {
		f.latents(t, s, model)
	}
	contexts, err := model.Contexts(int64(s.number(s.below(5000))))
	if f.judge(t, err); err == nil {
		f.keep(contexts[0])
	}
}

// read reads a model, and checks that its text is left alone.
func (f *fuzzer) read(t *testing.T, s *source) (model *rope.Model, err error) {
	var before, text []byte
	switch s.below(9) {
	case 0:
		text = s.mutate(gemma3(), []byte("rope"))
		before = bytes.Clone(text)
		model, err = rope.FromGGUF(text)
	case 1, 3:
		values, factors, memory := s.parsed()
		model, err = rope.FromGGUFValues(values, factors)
		f.count(err, "GGUF values")
		for _, tensor := range memory {
			if at, found := tensor.differs(false); found {
				t.Fatalf("factor %d has changed", at)
			}
		}
		return model, err
	case 2:
		text = s.json()
		before = bytes.Clone(text)
		model, err = rope.FromJSON(text, pick(s, "rope_theta", "hidden_size", "a\x00b", "x", ""))
	default:
		text = s.json()
		before = bytes.Clone(text)
		model, err = rope.FromJSON(text)
	}
	if !bytes.Equal(text, before) {
		t.Fatal("the text of a model has changed")
	}
	return model, err
}

// parsed are the keys of a GGUF file and its tensors of factors: mostly right ones, with one thing that is wrong.
func (s *source) parsed() (values map[string]any, factors map[string][]float32, memory []guarded) {
	architecture := pick(s, "llama", "llama", "gemma3", "granite_swa")
	pairs := pick(s, 2, 4, 8)
	values = map[string]any{"general.architecture": architecture, architecture + ".rope.freq_base": pick[any](s, float32(1e4), 5e5)}
	for _, number := range []struct {
		key string
		n   int
	}{{"block_count", 2}, {"embedding_length", 64}, {"attention.head_count", 2}, {"attention.key_length", 2 * pairs},
		{"rope.dimension_count", 2 * pairs}, {"attention.sliding_window", 512}} {
		key, n := number.key, number.n
		if key == "attention.sliding_window" && architecture == "llama" {
			continue
		}
		values[architecture+"."+key] = pick[any](s, n, int32(n), uint32(n), int64(n), uint16(n), uint64(n))
	}
	if architecture == "granite_swa" {
		values[architecture+".attention.sliding_window_pattern"] = pick[any](s, []bool{true, false}, []int{1, 0}, []uint8{0, 1})
		values[architecture+".attention.rope_pattern"] = []int32{1, 1}
	}
	for _, key := range []string{"general.alignment", "tokenizer.ggml.tokens", "split.count"} {
		if s.oneIn(4) {
			values[key] = pick[any](s, 1, uint32(0), uint8(1))
		}
	}
	names := pick(s, nil, []string{"rope_freqs.weight"}, []string{"rope_factors_long.weight", "rope_factors_short.weight"})
	if len(names) == 2 {
		values[architecture+".rope.scaling.type"] = "longrope"
		values[architecture+".rope.scaling.original_context_length"] = uint32(pick(s, 32, 4096))
		values[architecture+".context_length"] = 4096
	}
	if architecture == "gemma3" && !s.oneIn(4) {
		names = nil // it has none
		delete(values, "gemma3.rope.scaling.type")
	}
	switch s.below(6) {
	case 0:
		key := pick(s, slices.Sorted(maps.Keys(values))...)
		values[key] = pick[any](s, s.hostile(), uint64(s.hostile()), float32(s.float()), s.float(), []int{1, 2}, []float64{},
			[]bool{true}, "8", "", "\x00", true, nil, []any{1}, struct{}{})
	case 1:
		delete(values, pick(s, slices.Sorted(maps.Keys(values))...))
	case 2:
		values[pick(s, "general.alignment", "rope\x00", "", architecture+".rope.new", "split.count")] = s.hostile()
	case 3:
		names = append(slices.Clone(names), pick(s, "freqs.weight", "rope_freqs.weight", "rope_factors_long.weight",
			"blk.0.rope.weight", "rope\x00", "", "rope \" is "))
	case 4:
		for n := range pick(s, 7, 8, 9) {
			names = append(slices.Clone(names), fmt.Sprint("rope", n))
		}
	}
	factors = map[string][]float32{}
	for _, name := range names {
		tensor := fence(s, s.length(12, pairs), func() float32 { return 1 + float32(s.r.Float64()) })
		if len(tensor.inside) != 0 && s.oneIn(12) {
			tensor.inside[0] = float32(s.float())
		}
		copy(tensor.before, tensor.whole)
		factors[name], memory = tensor.inside, append(memory, tensor)
	}
	return values, factors, memory
}

func (f *fuzzer) latents(t *testing.T, s *source, model *rope.Model) {
	latents := rope.Latents{Grids: make([]rope.LatentGrid, pick(s, 0, 1, 1, 2)), Text: int64(pick(s, 0, 0, s.number(s.below(50)))),
		FPS: pick(s, 0, 0, 0, 24, s.float()), ScaleH: pick(s, 0, 0, 0, 0, s.float())}
	size := latents.Text
	for i := range latents.Grids {
		side := func() int32 { return int32(s.number(1 + s.below(9))) }
		g := rope.LatentGrid{T: side(), H: side(), W: side()}
		latents.Grids[i] = g
		size = max(size, int64(g.T)*int64(g.H), int64(g.T)*int64(g.H)*int64(g.W))
	}
	if size > 1<<18 {
		return // some of them are allowed, and slow
	}
	_, err := model.LatentIDs(s.number(0), latents)
	f.count(err, "LatentIDs")
	f.judge(t, err)
}

func (f *fuzzer) promptIDs(t *testing.T, s *source) {
	runs := s.runs()
	size := int64(0)
	for _, r := range runs {
		if r.T > 0 && r.H > 0 && r.W > 0 {
			size += int64(r.T) * int64(r.H) * int64(r.W)
		}
		size = max(size, r.Text)
	}
	if size > 1<<18 && size < 1<<28 {
		return // allowed, and slow
	}
	var ids []int64
	var err error
	if s.oneIn(3) {
		intervals := make([]float64, s.length(25, len(runs)))
		for i := range intervals {
			intervals[i] = pick(s, 0, 1, 1.5, s.float())
		}
		ids, _, err = rope.PromptIDsTimed(runs, intervals, s.position())
	} else {
		ids, _, err = rope.PromptIDs(runs, s.position())
	}
	if f.judge(t, err); err == nil && len(ids)%3 != 0 {
		t.Fatal(len(ids))
	}
}

func (f *fuzzer) ask(t *testing.T, s *source, c *rope.Context) {
	set := s.number(s.below(2))
	info, err := c.Info(set)
	f.judge(t, err)
	frequencies, err2 := c.InvFreq(set)
	if f.judge(t, err2); err == nil && (err2 != nil || len(frequencies)%max(1, info.Pairs) != 0 || info.ValidBelow < 1 || info.ValidFrom > info.ValidBelow) {
		t.Fatal(info, len(frequencies), err2)
	}
}
