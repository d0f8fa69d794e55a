package rope

import (
	"errors"
	"strings"
	"testing"
)

const yarnWithStrayKey = `{"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
	"num_hidden_layers": 2, "rope_theta": 10000.0, "max_position_embeddings": 16384,
	"rope_scaling": {"rope_type": "yarn", "factor": 4, "attn_factor": 0.5}}`

func TestKeysAreAcceptedByName(t *testing.T) {
	if _, err := FromJSON([]byte(yarnWithStrayKey)); !errors.Is(err, ErrUnsupported) {
		t.Fatal(err)
	}
	for _, key := range []string{"attn_factor", "rope_scaling.attn_factor"} {
		model, err := FromJSON([]byte(yarnWithStrayKey), key)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := model.Config(0); err != nil || c.Factor != 4 {
			t.Error(c.Factor, err)
		}
		model.Close()
	}
	for _, wrong := range [][]string{
		{"attn_factor", "rope_theta"}, {"attn_factor", "no_such_key"}, {"attn\x00factor"}, make([]string, 257),
	} {
		_, err := FromJSON([]byte(yarnWithStrayKey), wrong...)
		if !errors.Is(err, ErrInvalidArgument) {
			t.Error(wrong, err)
		}
	}
}

func TestNotes(t *testing.T) {
	const head = `{"model_type": "qwen2", "head_dim": 128`
	model, err := FromJSON([]byte(head + `, "dual_chunk_attention_config": {"chunk_size": 262144}}`))
	if err != nil {
		t.Fatal(err)
	}
	notes, err := model.Notes()
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "dual_chunk_attention_config") {
		t.Error(notes, err)
	}
	model.Close()
	if _, err := model.Notes(); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	plain, err := FromJSON([]byte(head + "}"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if notes, err := plain.Notes(); err != nil || len(notes) != 0 {
		t.Error(notes, err)
	}
}
