package rope

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"math"
	"unsafe"
)

// Pairing says which channels form a pair. The same weights are published in both orders, and the
// wrong one produces fluent nonsense.
type Pairing int32

// Scaling says how the frequencies follow from theta: rope_type in config.json. Its constants name the
// fields that they use as config.json does.
type Scaling int32

// Angle is the precision of the angle.
type Angle int32

// Digest says what two descriptions have in common if their digests are equal.
type Digest int32

// Rounding says where values are rounded to the tensor's type.
type Rounding int32

// DType is a type of elements, as a value.
type DType int32

// Device is where tensors live. The zero value is the CPU; ApplyQK takes slices, so contexts of other
// devices are for querying only.
type Device struct {
	CUDA  bool
	Index int
}

// Config is what belongs to the model. HeadDim, Theta and Pairing are required; the zero value of
// all else is the default. FromJSON makes it from a model's config.json, whose names the fields
// have.
type Config struct {
	HeadDim int     // channels of a head of q and k
	Theta   float64 // rope_theta; 0 only with InvFreq or ScalingNope
	Pairing Pairing // 0 only with ScalingNope

	RotaryDim    int // how many channels turn; the others pass through. 0: HeadDim
	RotaryOffset int // the first of them; HeadDim - RotaryDim for DeepSeek's trailing span

	Angle        Angle
	Rounding     Rounding
	InvFreqDType DType // frequencies are rounded through this type (ESM: F16), of F32, F16, BF16; 0: they are not

	// The scaling and its numbers. A number that the scaling does not use must be 0.
	Scaling                       Scaling
	Factor                        float64
	AttentionFactor               float64 // multiplies cos and sin; 0: the scaling's
	MaxPositionEmbeddings         int64
	OriginalMaxPositionEmbeddings int64
	SeqLen                        int64   // tokens of the sequence when attention runs, where NeedsSeqLen
	BetaFast, BetaSlow            float64 // fast is at least slow; 0: 32 and 1
	MScale, MScaleAllDim          float64
	LowFreqFactor, HighFreqFactor float64
	YarnNoTruncate                bool // "truncate": false

	// Several ids per token (images, video). With Axes > 1, MRopeSection, PairAxis or Frequency is
	// required.
	Axes             int
	MRopeSection     []int // pairs of each axis, up to 4
	MRopeInterleaved bool  // their pairs alternate (Qwen3-VL) instead of forming blocks (Qwen2-VL)
	// The ids of a token differ from axis to axis, as rows and columns of images do: positions with one
	// id for all axes are then errors. Towers and diffusion models of Model.Config have it.
	IDsPerAxis bool

	// Tables with one entry per pair.
	ShortFactor, LongFactor []float64 // LongRoPE
	FreqFactors             []float64 // divide the frequencies: rope_freqs.weight of GGUF
	InvFreq                 []float64 // replace Theta and Scaling
	PairAxis                []uint8   // axis of each pair

	// The general angle, a sum over axes of position * frequency, with frequencies of each head:
	// [axes][FreqHeads][pairs], one row behind the other. It replaces Theta, Scaling, InvFreq,
	// FreqFactors and the assignment of pairs to axes. The heads of q and k must be a multiple of
	// FreqHeads (0: 1).
	Frequency []float64
	FreqHeads int

	Device Device
}

// fill writes the C struct; its tables are copies in C memory.
func (c *Config) fill(function string, raw *C.rope_config, m *memory) error {
	if len(c.MRopeSection) > len(raw.mrope_section) {
		return invalid(function, "MRopeSection has %d entries, and takes up to %d: use PairAxis",
			len(c.MRopeSection), len(raw.mrope_section))
	}
	lengths := [...]int{len(c.ShortFactor), len(c.LongFactor), len(c.FreqFactors), len(c.InvFreq),
		len(c.PairAxis)}
	length := 0
	for _, n := range lengths {
		if n != 0 && length != 0 && n != length {
			return invalid(function, "ShortFactor, LongFactor, FreqFactors, InvFreq and PairAxis (%v entries) "+
				"must have one entry per pair", lengths)
		}
		length = max(length, n)
	}
	if rows := max(1, c.Axes) * max(1, c.FreqHeads); len(c.Frequency) != 0 {
		if c.Axes > 1<<15 || c.FreqHeads > 1<<15 || len(c.Frequency)%rows != 0 ||
			(length != 0 && length != len(c.Frequency)/rows) {
			return invalid(function, "Frequency has %d entries, and must have one for each of %d axes, "+
				"%d heads and the pairs", len(c.Frequency), max(1, c.Axes), max(1, c.FreqHeads))
		}
		length = len(c.Frequency) / rows
	}
	n := narrow{function: function}
	*raw = C.rope_config{
		struct_size:                      C.uint32_t(unsafe.Sizeof(*raw)),
		head_dim:                         n.int32("HeadDim", c.HeadDim),
		theta:                            C.double(c.Theta),
		pairing:                          C.rope_pairing(c.Pairing),
		rotary_dim:                       n.int32("RotaryDim", c.RotaryDim),
		rotary_offset:                    n.int32("RotaryOffset", c.RotaryOffset),
		angle:                            C.rope_angle(c.Angle),
		rounding:                         C.rope_rounding(c.Rounding),
		inv_freq_dtype:                   C.rope_dtype(c.InvFreqDType),
		scaling:                          C.rope_scaling(c.Scaling),
		yarn_no_truncate:                 boolean(c.YarnNoTruncate),
		factor:                           C.double(c.Factor),
		attention_factor:                 C.double(c.AttentionFactor),
		max_position_embeddings:          C.int64_t(c.MaxPositionEmbeddings),
		original_max_position_embeddings: C.int64_t(c.OriginalMaxPositionEmbeddings),
		seq_len:                          C.int64_t(c.SeqLen),
		beta_fast:                        C.double(c.BetaFast),
		beta_slow:                        C.double(c.BetaSlow),
		mscale:                           C.double(c.MScale),
		mscale_all_dim:                   C.double(c.MScaleAllDim),
		low_freq_factor:                  C.double(c.LowFreqFactor),
		high_freq_factor:                 C.double(c.HighFreqFactor),
		axes:                             n.int32("Axes", c.Axes),
		freq_heads:                       n.int32("FreqHeads", c.FreqHeads),
		mrope_interleaved:                boolean(c.MRopeInterleaved),
		ids_per_axis:                     boolean(c.IDsPerAxis),
		table_length:                     n.int32("the length of the tables", length),
		device:                           C.ROPE_DEVICE_CPU,
		device_index:                     n.int32("Device.Index", c.Device.Index),
	}
	if c.Device.CUDA {
		raw.device = C.ROPE_DEVICE_CUDA
	}
	for i, pairs := range c.MRopeSection {
		raw.mrope_section[i] = n.int32(fmt.Sprintf("MRopeSection[%d]", i), pairs)
	}
	if n.err != nil {
		return n.err
	}
	raw.short_factor = (*C.double)(copyTable(m, c.ShortFactor))
	raw.long_factor = (*C.double)(copyTable(m, c.LongFactor))
	raw.freq_factors = (*C.double)(copyTable(m, c.FreqFactors))
	raw.inv_freq = (*C.double)(copyTable(m, c.InvFreq))
	raw.frequency = (*C.double)(copyTable(m, c.Frequency))
	raw.pair_axis = (*C.uint8_t)(copyTable(m, c.PairAxis))
	if m.failed {
		return outOfMemory(function, "tables of %d entries", length)
	}
	return nil
}

// read copies the C struct and its tables.
func (c *Config) read(function string, raw *C.rope_config) error {
	device, err := deviceOf(int32(raw.device), int(raw.device_index))
	if err != nil {
		return &Error{ErrUnsupported, "rope." + function + ": " + err.Error()}
	}
	n := int(raw.table_length)
	*c = Config{
		HeadDim:                       int(raw.head_dim),
		Theta:                         float64(raw.theta),
		Pairing:                       Pairing(raw.pairing),
		RotaryDim:                     int(raw.rotary_dim),
		RotaryOffset:                  int(raw.rotary_offset),
		Angle:                         Angle(raw.angle),
		Rounding:                      Rounding(raw.rounding),
		InvFreqDType:                  DType(raw.inv_freq_dtype),
		Scaling:                       Scaling(raw.scaling),
		Factor:                        float64(raw.factor),
		AttentionFactor:               float64(raw.attention_factor),
		MaxPositionEmbeddings:         int64(raw.max_position_embeddings),
		OriginalMaxPositionEmbeddings: int64(raw.original_max_position_embeddings),
		SeqLen:                        int64(raw.seq_len),
		BetaFast:                      float64(raw.beta_fast),
		BetaSlow:                      float64(raw.beta_slow),
		MScale:                        float64(raw.mscale),
		MScaleAllDim:                  float64(raw.mscale_all_dim),
		LowFreqFactor:                 float64(raw.low_freq_factor),
		HighFreqFactor:                float64(raw.high_freq_factor),
		YarnNoTruncate:                raw.yarn_no_truncate != 0,
		Axes:                          int(raw.axes),
		MRopeInterleaved:              raw.mrope_interleaved != 0,
		IDsPerAxis:                    raw.ids_per_axis != 0,
		ShortFactor:                   floats(raw.short_factor, n),
		LongFactor:                    floats(raw.long_factor, n),
		FreqFactors:                   floats(raw.freq_factors, n),
		InvFreq:                       floats(raw.inv_freq, n),
		Frequency:                     floats(raw.frequency, n*max(1, int(raw.axes))*max(1, int(raw.freq_heads))),
		FreqHeads:                     int(raw.freq_heads),
		Device:                        device,
	}
	for i, pairs := range raw.mrope_section {
		if pairs != 0 {
			// Sections before it may be empty.
			for len(c.MRopeSection) <= i {
				c.MRopeSection = append(c.MRopeSection, 0)
			}
			c.MRopeSection[i] = int(pairs)
		}
	}
	if raw.pair_axis != nil {
		table := unsafe.Slice((*uint8)(unsafe.Pointer(raw.pair_axis)), n)
		c.PairAxis = append([]uint8(nil), table...)
	}
	return nil
}

// deviceOf is the device of C's fields. What has no name here is none of those that have.
func deviceOf(number int32, index int) (Device, error) {
	switch number {
	case 0, C.ROPE_DEVICE_CPU:
		return Device{Index: index}, nil
	case C.ROPE_DEVICE_CUDA:
		return Device{CUDA: true, Index: index}, nil
	}
	return Device{}, fmt.Errorf("device (%d) is none that this package knows", number)
}

func boolean(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

func floats(table *C.double, n int) []float64 {
	if table == nil {
		return nil
	}
	return append([]float64(nil), unsafe.Slice((*float64)(unsafe.Pointer(table)), n)...)
}

// memory is C memory of one call.
type memory struct {
	blocks []unsafe.Pointer
	failed bool
}

func (m *memory) free() {
	for _, p := range m.blocks {
		C.free(p)
	}
}

// copyTable copies a table to C memory; nil if it is empty, or if there is no memory. (C.malloc would
// end the process then.)
func copyTable[T float64 | uint8](m *memory, table []T) unsafe.Pointer {
	if len(table) == 0 {
		return nil
	}
	p := C.calloc(C.size_t(len(table)), C.size_t(unsafe.Sizeof(table[0])))
	if p == nil {
		m.failed = true
		return nil
	}
	m.blocks = append(m.blocks, p)
	copy(unsafe.Slice((*T)(p), len(table)), table)
	return p
}

// NeedsSeqLen tells whether the frequencies depend on the length of the sequence, so that SeqLen is
// required.
func (c *Config) NeedsSeqLen() bool {
	return c.Scaling == ScalingDynamic || c.Scaling == ScalingDynamicSteps || c.Scaling == ScalingLongRope
}

// NextChange returns the smallest length above seqLen whose frequencies differ from those of seqLen;
// math.MaxInt64 if there is none. A context made for seqLen is right up to one token less. SeqLen is
// not looked at.
func (c *Config) NextChange(seqLen int64) (int64, error) {
	if err := compatible(); err != nil {
		return 0, err
	}
	var tables memory
	defer tables.free()
	raw := new(C.rope_config)
	if err := c.fill("NextChange", raw, &tables); err != nil {
		return 0, err
	}
	next := C.int64_t(math.MaxInt64)
	err := check("NextChange", C.ropego_config_next_change(raw, C.int64_t(seqLen), &next))
	if err != nil {
		return 0, err
	}
	return int64(next), nil
}

// Digest is a text that is equal for configurations that rotate alike, however they say it, and another as
// soon as one bit of a frequency, a factor or a channel is: docs/digest.md. SeqLen and Device are not
// looked at.
func (c *Config) Digest(same Digest) (string, error) {
	if err := compatible(); err != nil {
		return "", err
	}
	var tables memory
	defer tables.free()
	raw := new(C.rope_config)
	if err := c.fill("Digest", raw, &tables); err != nil {
		return "", err
	}
	digest := new(C.rope_digest_text)
	err := check("Digest", C.ropego_config_digest(raw, C.rope_digest(same), digest))
	if err != nil {
		return "", err
	}
	return C.GoString(&digest.text[0]), nil
}
