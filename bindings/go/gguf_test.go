package rope_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	rope "github.com/librope/librope/bindings/go"
)

// ggufOf writes a header: values are uint32 or float32.
func ggufOf(architecture string, keys ...any) []byte {
	le := binary.LittleEndian
	text := func(words string) []byte {
		return append(le.AppendUint64(nil, uint64(len(words))), words...)
	}
	out := le.AppendUint32([]byte("GGUF"), 3)
	out = le.AppendUint64(out, 0)
	out = le.AppendUint64(out, uint64(len(keys)/2+1))
	out = append(out, text("general.architecture")...)
	out = le.AppendUint32(out, 8)
	out = append(out, text(architecture)...)
	for i := 0; i < len(keys); i += 2 {
		out = append(out, text(architecture+"."+keys[i].(string))...)
		kind := uint32(4)
		if _, isFloat := keys[i+1].(float32); isFloat {
			kind = 6
		}
		out = le.AppendUint32(out, kind)
		out, _ = binary.Append(out, le, keys[i+1])
	}
	return out
}

func gemma3() []byte {
	return ggufOf("gemma3", "block_count", uint32(6), "embedding_length", uint32(2560),
		"attention.key_length", uint32(256), "attention.sliding_window", uint32(1024),
		"rope.freq_base", float32(1e6))
}

func expectGemma3(t *testing.T, model *rope.Model, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	first, _ := model.LayerType(0)
	last, err := model.LayerType(5)
	if err != nil || first == last {
		t.Fatalf("kinds %d and %d, %v", first, last, err)
	}
	config, err := model.Config(last)
	if err != nil || config.Theta != 1e6 || config.Pairing != rope.PairingHalves {
		t.Errorf("%+v, %v", config, err)
	}
}

func TestGGUFOfBytesAndFiles(t *testing.T) {
	model, err := rope.FromGGUF(gemma3())
	expectGemma3(t, model, err)
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, append(gemma3(), make([]byte, 1<<21)...), 0o600); err != nil {
		t.Fatal(err)
	}
	model, err = rope.LoadGGUF(path)
	expectGemma3(t, model, err)
}

func TestGGUFErrors(t *testing.T) {
	for _, test := range []struct {
		what string
		call func() error
		is   error
		says string
	}{
		{"early end", func() error { _, err := rope.FromGGUF(gemma3()[:40]); return err }, rope.ErrParse,
			"rope.FromGGUF: the file ends after 40 bytes, inside key 1 of 6"},
		{"nothing", func() error { _, err := rope.FromGGUF(nil); return err }, rope.ErrParse, "ends after 0"},
		{"no such file", func() error { _, err := rope.LoadGGUF(t.TempDir() + "/none"); return err },
			rope.ErrInvalidArgument, "rope.LoadGGUF: path ("},
		{"zero byte", func() error { _, err := rope.LoadGGUF("a\x00b"); return err },
			rope.ErrInvalidArgument, "zero byte"},
		{"architecture", func() error { _, err := rope.FromGGUF(ggufOf("bert")); return err },
			rope.ErrUnsupported, `general.architecture ("bert")`},
		{"key", func() error {
			_, err := rope.FromGGUF(append([]byte(nil), ggufOf("llama", "block_count", uint32(1),
				"embedding_length", uint32(64), "attention.head_count", uint32(1), "rope.x", uint32(1))...))
			return err
		}, rope.ErrUnsupported, "llama.rope.x (1) speaks of RoPE"},
	} {
		err := test.call()
		if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", test.what, err)
		}
	}
}

func TestGGUFValues(t *testing.T) {
	model, err := rope.FromGGUFValues(map[string]any{
		"general.architecture": "gemma3", "gemma3.block_count": 6, "gemma3.embedding_length": uint32(2560),
		"gemma3.attention.key_length": int64(256), "gemma3.attention.sliding_window": uint16(1024),
		"gemma3.attention.value_length": uint(256), "gemma3.rope.freq_base": float32(1e6), "tokenizer.ggml.tokens": []string{"a", "b"},
		"tokenizer.ggml.scores": []float32{1, 2}, "tokenizer.ggml.add_bos_token": true,
	}, nil)
	expectGemma3(t, model, err)
	values := map[string]any{
		"general.architecture": "granite_swa", "granite_swa.block_count": 2,
		"granite_swa.attention.key_length":             8,
		"granite_swa.attention.sliding_window":         512,
		"granite_swa.attention.sliding_window_pattern": []bool{true, false},
		"granite_swa.attention.rope_pattern":           []uint{1, 1},
	}
	model, err = rope.FromGGUFValues(values, map[string][]float32{"rope_freqs.weight": {1, 2, 3, 4}})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	if config, err := model.Config(0); err != nil || len(config.FreqFactors) != 4 || config.FreqFactors[3] != 4 {
		t.Errorf("%+v, %v", config, err)
	}
	for what, test := range map[string]struct {
		value any
		is    error
		says  string
	}{
		"of RoPE":  {1, rope.ErrUnsupported, "granite_swa.rope.new (1) speaks of RoPE"},
		"a struct": {struct{}{}, rope.ErrInvalidArgument, `values["granite_swa.rope.new"] (struct {}) must be`},
	} {
		values["granite_swa.rope.new"] = test.value
		_, err := rope.FromGGUFValues(values, nil)
		if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// llamaValues are the keys of a model with heads of 48 channels.
func llamaValues() map[string]any {
	return map[string]any{"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": uint32(96),
		"llama.attention.head_count": uint32(2), "llama.rope.freq_base": float32(1e4)}
}

// longRope makes them those of a model that has factors for two lengths.
func longRope(values map[string]any) map[string]any {
	values["llama.rope.scaling.type"], values["llama.rope.scaling.original_context_length"] = "longrope", uint32(4096)
	values["llama.context_length"] = uint32(8192)
	return values
}

// Where tensors lie in a file, nothing that is read depends on.
func TestGGUFValuesOfAnyAlignment(t *testing.T) {
	one, two := make([]float32, 24), make([]float32, 24)
	for i := range one {
		one[i], two[i] = 1+float32(i), 2+float32(i)
	}
	wide := slices.Concat(one, one[:8])
	wideValues := llamaValues()
	wideValues["llama.embedding_length"] = uint32(128)
	for name, given := range map[string]struct {
		values  map[string]any
		factors map[string][]float32
	}{
		"24 factors":  {llamaValues(), map[string][]float32{"rope_freqs.weight": one}},
		"32 factors":  {wideValues, map[string][]float32{"rope_freqs.weight": wide}},
		"two tensors": {longRope(llamaValues()), map[string][]float32{"rope_factors_long.weight": two, "rope_factors_short.weight": one}},
	} {
		read := func() rope.Config {
			model, err := rope.FromGGUFValues(given.values, given.factors)
			if err != nil {
				t.Fatalf("%s, alignment %v: %v", name, given.values["general.alignment"], err)
			}
			defer model.Close()
			config, err := model.Config(0)
			if err != nil {
				t.Fatal(err)
			}
			return config
		}
		want := read()
		if len(want.FreqFactors) != len(given.factors["rope_freqs.weight"]) || name == "two tensors" &&
			(want.LongFactor[23] != 25 || want.ShortFactor[23] != 24) {
			t.Errorf("%s: %+v", name, want)
		}
		for _, alignment := range []any{8, uint32(32), uint32(64)} {
			given.values["general.alignment"] = alignment
			if got := read(); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, alignment %v: %+v, want %+v", name, alignment, got, want)
			}
		}
	}
}

// Types of the caller's are those that they are made of, and values may lie in the middle of a slice.
func TestGGUFValuesOfNamedTypes(t *testing.T) {
	type (
		number  uint32
		decimal float32
		text    string
		whole   int
		flags   []bool
	)
	all := []whole{9, 1, 1}
	model, err := rope.FromGGUFValues(map[string]any{
		"general.architecture": text("granite_swa"), "granite_swa.block_count": number(2),
		"granite_swa.attention.key_length":             whole(8),
		"granite_swa.attention.sliding_window":         number(512),
		"granite_swa.attention.sliding_window_pattern": flags{true, false},
		"granite_swa.attention.rope_pattern":           all[1:],
		"granite_swa.rope.freq_base":                   decimal(7e4),
		"tokenizer.ggml.tokens":                        []text{"a", "b"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	if config, err := model.Config(0); err != nil || config.Theta != 7e4 || config.HeadDim != 8 {
		t.Errorf("%+v, %v", config, err)
	}
}

func TestGGUFValuesRefused(t *testing.T) {
	type point struct{}
	factors, nine := make([]float32, 24), map[string][]float32{}
	for i := range factors {
		factors[i] = 1
	}
	for i := range 9 {
		nine[fmt.Sprintf("rope%d", i)] = factors
	}
	many := map[string]any{}
	for i := range 1<<16 + 1 {
		many[fmt.Sprint(i)] = true
	}
	with := func(key string, value any) map[string]any {
		values := llamaValues()
		values[key] = value
		return values
	}
	of := func(name string, factors ...float32) map[string][]float32 { return map[string][]float32{name: factors} }
	for _, test := range []struct {
		values  map[string]any
		factors map[string][]float32
		is      error
		says    string
	}{
		// Without "rope" in its name, it was forgotten silently.
		{llamaValues(), of("freqs.weight", factors...), rope.ErrUnsupported,
			`factors["freqs.weight"] does not count for general.architecture "llama"`},
		{llamaValues(), of("", factors...), rope.ErrUnsupported, `factors[""] does not count`},
		{llamaValues(), of("rope_factors_long.weight", factors...), rope.ErrUnsupported,
			`factors["rope_factors_long.weight"] does not count`},
		{longRope(llamaValues()), of("rope_factors_long.weight", factors...), rope.ErrParse,
			`factors["rope_factors_short.weight"] is missing, and "rope_factors_long.weight" is there`},
		{longRope(llamaValues()), nil, rope.ErrParse, `factors["rope_factors_long.weight"] is missing: the scaling type`},
		{llamaValues(), of("rope_freqs.weight", factors[1:]...), rope.ErrParse,
			`factors["rope_freqs.weight"] has 23 values and must have one for each of 24 pairs`},
		{llamaValues(), of("rope_freqs.weight"), rope.ErrParse,
			`factors["rope_freqs.weight"] has 0 values and must have from 1`},
		{llamaValues(), of("rope_freqs.weight", make([]float32, 1<<20)...), rope.ErrParse,
			`factors["rope_freqs.weight"] has 1048576 values and must have from 1`},
		{llamaValues(), map[string][]float32{"rope_freqs.weight": {}}, rope.ErrParse,
			`factors["rope_freqs.weight"] has 0 values and must have from 1`},
		{llamaValues(), nine, rope.ErrInvalidArgument, "rope.FromGGUFValues: len(factors) (9) must be from 0 to 8"},
		{many, nil, rope.ErrInvalidArgument, "rope.FromGGUFValues: len(values) (65537) must be from 0 to 65536"},
		{llamaValues(), of("rope_freqs.weight\x00", factors...), rope.ErrInvalidArgument,
			`the key "rope_freqs.weight\x00" of factors must not have a NUL`},
		{with("llama.rope\x00.x", 1), nil, rope.ErrInvalidArgument, `the key "llama.rope\x00.x" of values must not have a NUL`},
		{with("a", 1i), nil, rope.ErrInvalidArgument,
			`values["a"] (complex128) must be a bool, a string, an int, uint or float of any size, or a slice of one of them`},
		{with("a", nil), nil, rope.ErrInvalidArgument, `values["a"] (<nil>) must be`},
		{with("a", point{}), nil, rope.ErrInvalidArgument, `values["a"] (rope_test.point) must be`},
		{with("a", [][]int{{1}}), nil, rope.ErrInvalidArgument, `values["a"] ([][]int) must be`},
		{with("a", []any{1}), nil, rope.ErrInvalidArgument, `values["a"] ([]interface {}) must be`},
		{with("a", new(uint32)), nil, rope.ErrInvalidArgument, `values["a"] (*uint32) must be`},
		{with("llama.rope.freq_base", "1\x002"), nil, rope.ErrParse, "llama.rope.freq_base"},
		{with("llama.block_count", []uint32{}), nil, rope.ErrParse, "llama.block_count"},
		{nil, nil, rope.ErrParse, "general.architecture is missing"},
	} {
		_, err := rope.FromGGUFValues(test.values, test.factors)
		if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v, want %s", err, test.says)
		}
	}
}
