package rope

// #include "shim.h"
import "C"

import (
	"math"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/extent"
)

// NormKind is what a norm divides by, and what comes after.
type NormKind int32

// NormSpan is which channels are normed together.
type NormSpan int32

// NormOrder is whether the norm comes before the rotation or after it.
type NormOrder int32

// NormRounding is where a norm rounds to the type of the tensor. For float32 they are all the same.
type NormRounding int32

// Norms are the norms of a layer, for Step.Norms; nil for none. Each goes with its tensor: one of q
// needs a q.
type Norms struct {
	Q, K *Norm
	V    *Norm // of Append, on the way into the cache
}

// Norm is a norm of one tensor of a call. It covers all channels that the tensor has: whole heads, or
// the span alone. For OperationForward and, with X, OperationBackward.
type Norm struct {
	Kind NormKind // required
	Eps  float64  // required, but 0 with Rstd, which contains it
	// One for each channel, or [heads, channels] with PerHead or a Span of all heads. Weight is the zero
	// value with NormKindRMSPlain, Bias with all but NormKindLayerBias; both have one element type.
	Weight, Bias Array
	PerHead      bool
	Span         NormSpan
	Order        NormOrder
	Rounding     NormRounding
	Rstd         []float32 // with NormSpanGiven: the inverse root of each token, [batch, tokens]

	// OperationBackward: X is what the norm was given in the forward pass, with the type and heads of the
	// output: the gradient that goes in becomes that of X. WeightGrad and BiasGrad are nil or overwritten with
	// those of the weights in GradParts parts, which the caller adds: [GradParts, channels], or [GradParts,
	// heads, channels] where each head has weights of its own. Part i adds equal runs of tokens in their order;
	// the result depends on the number of parts alone, and each is work for one thread.
	X                    AnyTensor
	WeightGrad, BiasGrad []float32
	GradParts            int
}

// normData are the arrays of a norm, for the call.
type normData struct {
	weight, bias, x            *C.uint8_t
	rstd, weightGrad, biasGrad *C.float
}

// check fills the C norm after checking that its arrays have the lengths of their tensor.
func (n *Norm) check(function, name string, raw *C.ropego_norm, heads, channels int, step *Step) (data normData,
	err error) {
	if n == nil {
		return normData{}, nil
	}
	rows := n.describe(raw, heads, channels)
	for _, w := range []struct {
		name  string
		array Array
	}{{"Weight", n.Weight}, {"Bias", n.Bias}} {
		if w.array.data == nil {
			continue
		}
		if !extent.Fills(w.array.len, 1, rows, channels) {
			return normData{}, invalid(function, "Norms.%s.%s has %s, and must have %s", name, w.name,
				count(w.array.len, "element", "elements"), weightsOf(rows, channels))
		}
	}
	if err := n.checkTypes(function, name); err != nil {
		return normData{}, err
	}
	if n.Rstd != nil && !extent.Fills(len(n.Rstd), step.Batch, step.Tokens, 1) {
		return normData{}, invalid(function, "Norms.%s.Rstd has %s, and must have one for each of %d * %d tokens", name,
			count(len(n.Rstd), "element", "elements"), step.Batch, step.Tokens)
	}
	data = normData{weight: (*C.uint8_t)(n.Weight.data), bias: (*C.uint8_t)(n.Bias.data),
		rstd: (*C.float)(unsafe.SliceData(n.Rstd))}
	if n.GradParts < 0 || n.GradParts > math.MaxInt32 {
		return normData{}, invalid(function, "Norms.%s.GradParts (%d) must be 0 or more, and an int32", name, n.GradParts)
	}
	raw.grad_parts = C.int32_t(n.GradParts)
	for _, g := range []struct {
		name  string
		array []float32
		data  **C.float
	}{{"WeightGrad", n.WeightGrad, &data.weightGrad}, {"BiasGrad", n.BiasGrad, &data.biasGrad}} {
		if g.array == nil {
			continue
		}
		// Without parts the library says that they are required.
		if n.GradParts != 0 && !extent.Fills(len(g.array), n.GradParts, rows, channels) {
			return normData{}, invalid(function, "Norms.%s.%s has %s, and must have %s of %s", name, g.name,
				count(len(g.array), "element", "elements"), count(n.GradParts, "part", "parts"), weightsOf(rows, channels))
		}
		*g.data = (*C.float)(unsafe.SliceData(g.array))
	}
	if err := n.checkX(function, name); err != nil {
		return normData{}, err
	}
	if !n.X.empty() {
		if n.X.scale != nil || n.X.headDim != 0 && n.X.headDim != channels {
			return normData{}, invalid(function, "Norms.%s.X must have no Scale, and no other head_dim than %d", name, channels)
		}
		data.x, err = n.X.check(function, "Norms."+name+".X", &raw.x, channels, step, false)
		if name == "V" {
			raw.x.head_dim = C.int32_t(channels)
		}
	}
	return data, err
}

// weightsOf are those of a norm in words.
func weightsOf(rows, channels int) string {
	return count(rows, "row", "rows") + " of " + count(channels, "channel", "channels")
}

// checkTypes is for arrays, and for empty ones that describe those of layers.
func (n *Norm) checkTypes(function, name string) error {
	if n.Bias.dtype != 0 && n.Bias.dtype != n.Weight.dtype {
		return invalid(function, "Norms.%s.Bias (%v) must have the element type of Weight (%v)", name, n.Bias.dtype,
			n.Weight.dtype)
	}
	return nil
}

// checkUnread refuses what the norm would not read: for norms of prepared calls, of whose arrays the library sees none.
func (n *Norm) checkUnread(function, name string) error {
	switch n.Kind {
	case NormKindRMS, NormKindRMSOnePlus, NormKindRMSPlain, NormKindLayer: // of another one the library says what is wrong
		if n.Bias.data != nil {
			return invalid(function, "Norms.%s.Bias must be nil with %v", name, n.Kind)
		}
	}
	if n.Rstd != nil && n.Span != NormSpanGiven {
		return invalid(function, "Norms.%s.Rstd must be nil with another span than %v", name, NormSpanGiven)
	}
	return nil
}

// checkX refuses what is said of an X that is none.
func (n *Norm) checkX(function, name string) error {
	if !n.X.empty() {
		return nil
	}
	x := part{name: "Norms." + name + ".X", tensor: &n.X}
	return x.checkNone(function)
}

// describe fills the C norm but for its arrays, and returns how many rows of weights it has.
func (n *Norm) describe(raw *C.ropego_norm, heads, channels int) (rows int) {
	raw.given = 1
	raw.kind, raw.span = C.int32_t(n.Kind), C.int32_t(n.Span)
	raw.order, raw.rounding = C.int32_t(n.Order), C.int32_t(n.Rounding)
	raw.eps = C.double(n.Eps)
	raw.weight_dtype = C.int32_t(n.Weight.dtype)
	if !n.PerHead && (n.Span == NormSpanHead || n.Weight.dtype == 0) {
		return 1
	}
	raw.weight_stride_head = C.int64_t(channels)
	return heads
}

// places are what the arrays of a layer have to be: weight, bias and rstd.
func (n *Norm) places(rows, channels int, step *Step) (at [3]place) {
	weights := place{true, true, uint64(rows) * uint64(channels), n.Weight.dtype}
	if n.Kind != NormKindRMSPlain {
		at[0] = weights
	}
	if n.Kind == NormKindLayerBias {
		at[1] = weights
	}
	if n.Span == NormSpanGiven {
		at[2] = place{true, true, uint64(step.Batch) * uint64(step.Tokens), DTypeF32}
	}
	return at
}

// tellRace reports what a call has read of the norms.
func (n *Norms) tellRace() {
	for _, norm := range []*Norm{n.Q, n.K, n.V} {
		if norm != nil {
			raceRead(norm.Weight.data, uint64(norm.Weight.len)*norm.Weight.bytes)
			raceRead(norm.Bias.data, uint64(norm.Bias.len)*norm.Bias.bytes)
			raceRead(unsafe.Pointer(unsafe.SliceData(norm.Rstd)), uint64(len(norm.Rstd))*4)
			raceRead(norm.X.data, uint64(norm.X.len)*norm.X.bytes)
			raceWrite(unsafe.Pointer(unsafe.SliceData(norm.WeightGrad)), uint64(len(norm.WeightGrad))*4)
			raceWrite(unsafe.Pointer(unsafe.SliceData(norm.BiasGrad)), uint64(len(norm.BiasGrad))*4)
		}
	}
}

// q and k are those of a step, which may have none.
func (n *Norms) q() *Norm {
	if n == nil {
		return nil
	}
	return n.Q
}

func (n *Norms) k() *Norm {
	if n == nil {
		return nil
	}
	return n.K
}
