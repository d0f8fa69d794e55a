package rope

// #include "shim.h"
import "C"

import (
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
// the span alone. For OperationForward.
type Norm struct {
	Kind NormKind // required
	Eps  float64  // required, but 0 with Rstd, which contains it
	// One for each channel, or [heads, channels] with PerHead or a Span of all heads. Weight is the zero
	// value with NormKindRMSPlain, Bias with all but NormKindLayerBias; both have one element type.
	Weight, Bias Weights
	PerHead      bool
	Span         NormSpan
	Order        NormOrder
	Rounding     NormRounding
	Rstd         []float32 // with NormSpanGiven: the inverse root of each token, [batch, tokens]
}

// Weights are a slice of any Element type. The zero value is none.
type Weights struct {
	data  unsafe.Pointer
	len   int
	bytes uint64 // of an element
	dtype DType
}

// WeightsOf are those of a slice.
func WeightsOf[T Element](weights []T) Weights {
	var zero T
	return Weights{data: addressOf(weights), len: len(weights), bytes: uint64(unsafe.Sizeof(zero)),
		dtype: dtypeOf[T]()}
}

// normData are the arrays of a norm, for the call.
type normData struct {
	weight, bias *C.uint8_t
	rstd         *C.float
}

// check fills the C norm after checking that its arrays have the lengths of their tensor.
func (n *Norm) check(function, name string, raw *C.ropego_norm, heads, channels int, step *Step) (data normData,
	err error) {
	if n == nil {
		return normData{}, nil
	}
	rows := 1
	if n.PerHead || (n.Span != NormSpanHead && n.Weight.data != nil) {
		rows = heads
		raw.weight_stride_head = C.int64_t(channels)
	}
	for _, w := range []struct {
		name  string
		array Weights
	}{{"Weight", n.Weight}, {"Bias", n.Bias}} {
		if w.array.data == nil {
			continue
		}
		if !extent.Fills(w.array.len, 1, rows, channels) {
			return normData{}, invalid(function, "Norms.%s.%s has %d elements, and must have %d rows of %d channels", name,
				w.name, w.array.len, rows, channels)
		}
		if w.array.dtype != n.Weight.dtype {
			return normData{}, invalid(function, "Norms.%s.%s must have the element type of Weight", name, w.name)
		}
	}
	if n.Rstd != nil && !extent.Fills(len(n.Rstd), step.Batch, step.Tokens, 1) {
		return normData{}, invalid(function, "Norms.%s.Rstd has %d elements, and must have one for each of %d * %d "+
			"tokens", name, len(n.Rstd), step.Batch, step.Tokens)
	}
	raw.given = 1
	raw.kind, raw.span = C.int32_t(n.Kind), C.int32_t(n.Span)
	raw.order, raw.rounding = C.int32_t(n.Order), C.int32_t(n.Rounding)
	raw.eps = C.double(n.Eps)
	raw.weight_dtype = C.int32_t(n.Weight.dtype)
	return normData{(*C.uint8_t)(n.Weight.data), (*C.uint8_t)(n.Bias.data), (*C.float)(unsafe.SliceData(n.Rstd))}, nil
}

// tellRace reports what a call has read of the norms.
func (n *Norms) tellRace() {
	for _, norm := range []*Norm{n.Q, n.K, n.V} {
		if norm != nil {
			raceRead(norm.Weight.data, uint64(norm.Weight.len)*norm.Weight.bytes)
			raceRead(norm.Bias.data, uint64(norm.Bias.len)*norm.Bias.bytes)
			raceRead(unsafe.Pointer(unsafe.SliceData(norm.Rstd)), uint64(len(norm.Rstd))*4)
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
