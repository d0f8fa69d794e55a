package rope_test

import (
	"errors"
	"testing"

	rope "github.com/librope/librope/bindings/go"
)

func TestDigestsOfAModelAndOfItsFile(t *testing.T) {
	model, err := rope.FromJSON([]byte(`{"model_type": "gemma3_text", "hidden_size": 2560, "head_dim": 256,
		"num_attention_heads": 8, "num_hidden_layers": 6, "rope_theta": 1000000.0,
		"rope_local_base_freq": 10000.0, "sliding_window": 1024, "sliding_window_pattern": 6}`))
	if err != nil {
		t.Fatal(err)
	}
	file, err := rope.FromGGUF(gemma3())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, same := range []rope.Digest{rope.DigestRotation, rope.DigestAngles} {
		a, err := model.Digest(-1, same)
		if err != nil {
			t.Fatal(err)
		}
		b, err := file.Digest(-1, same)
		if err != nil || a != b {
			t.Error(same, a, b, err)
		}
	}
	config, err := model.Config(0)
	if err != nil {
		t.Fatal(err)
	}
	want, err := model.Digest(0, rope.DigestRotation)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := config.Digest(rope.DigestRotation); err != nil || got != want {
		t.Error(got, want, err)
	}
	config.Theta++
	if got, err := config.Digest(rope.DigestRotation); err != nil || got == want {
		t.Error(got, err)
	}
	if _, err := model.Digest(2, rope.DigestRotation); !errors.Is(err, rope.ErrInvalidArgument) {
		t.Error(err)
	}
	if _, err := config.Digest(3); !errors.Is(err, rope.ErrUnsupported) {
		t.Error(err)
	}
	model.Close()
	if _, err := model.Digest(0, rope.DigestRotation); !errors.Is(err, rope.ErrClosed) {
		t.Error(err)
	}
}
