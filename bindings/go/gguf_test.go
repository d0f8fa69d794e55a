package rope_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
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
		"gemma3.rope.freq_base": float32(1e6), "tokenizer.ggml.tokens": []string{"a", "b"},
		"tokenizer.ggml.scores": []float32{1, 2}, "tokenizer.ggml.add_bos_token": true,
	}, nil)
	expectGemma3(t, model, err)
	values := map[string]any{
		"general.architecture": "granite_swa", "granite_swa.block_count": 2,
		"granite_swa.attention.key_length":             8,
		"granite_swa.attention.sliding_window":         512,
		"granite_swa.attention.sliding_window_pattern": []bool{true, false},
		"granite_swa.attention.rope_pattern":           []int{1, 1},
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
