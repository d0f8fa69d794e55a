package rope

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func diffusionModel(t *testing.T, class string) *Model {
	t.Helper()
	model, err := FromJSON([]byte(`{"_class_name": "` + class + `"}`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { model.Close() })
	return model
}

func TestLatentIDs(t *testing.T) {
	model := diffusionModel(t, "QwenImageTransformer2DModel")
	ids, err := model.LatentIDs(0, Latents{Grids: []LatentGrid{{1, 1, 3}}, Text: 1})
	want := []float32{1, 0, 0, 0, 1, -1, -1, -1, 1, -2, -1, 0}
	if err != nil || !slices.Equal(ids, want) {
		t.Errorf("got %v, %v, want %v", ids, err, want)
	}
	// Rows and columns are not alike: one id for all axes is refused.
	if config, err := model.Config(0); err != nil || !config.IDsPerAxis {
		t.Errorf("%+v, %v", config, err)
	}
	if ids, err := model.LatentIDs(0, Latents{}); err != nil || len(ids) != 0 {
		t.Errorf("no tokens: %v, %v", ids, err)
	}
}

func TestLatentIDsRefuses(t *testing.T) {
	flux := diffusionModel(t, "FluxTransformer2DModel")
	image := []LatentGrid{{1, 2, 3}}
	for _, test := range []struct {
		kind    int
		latents Latents
		message string
	}{
		{0, Latents{Grids: []LatentGrid{{1, 0, 3}}}, "Grids[0] must have t, h and w from 1 to 2^23"},
		{0, Latents{Grids: image, FPS: 24}, "FPS (24) must be 0"},
		{0, Latents{Grids: image, ScaleW: 2}, "ScaleW (2) must be 0"},
		{0, Latents{Grids: image, Text: -1}, "Text (-1) must be from 0"},
		{1, Latents{Grids: image}, "must be from 0 to 0"},
	} {
		_, err := flux.LatentIDs(test.kind, test.latents)
		if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), test.message) {
			t.Errorf("%+v: %v, want %q", test.latents, err, test.message)
		}
	}
	if err := flux.Close(); err != nil {
		t.Error(err)
	}
	if _, err := flux.LatentIDs(0, Latents{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestLatentIDsBeyondMemory(t *testing.T) {
	video := diffusionModel(t, "WanTransformer3DModel")
	_, err := video.LatentIDs(0, Latents{Grids: []LatentGrid{{1, 1 << 19, 1 << 19}}})
	if !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("2^38 tokens: %v", err)
	}
}
