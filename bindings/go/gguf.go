//go:build cgo

package rope

// #include "shim.h"
import "C"

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
)

// FromGGUFValues is FromGGUF for a program that has parsed the file already. values are its keys: bool, string,
// int, int8 to int64, uint8 to uint64, float32, float64, and slices of them; texts of a vocabulary may be among
// them and are not looked at. factors are its tensors of frequency factors by name ("rope_freqs.weight"). A value
// of another type is an ErrInvalidArgument.
func FromGGUFValues(values map[string]any, factors map[string][]float32) (*Model, error) {
	header, err := ggufHeader(values, factors)
	if err != nil {
		return nil, err
	}
	return newModel("FromGGUFValues", func(out **C.rope_model) *C.ropego_error {
		return C.ropego_model_create_gguf(bytesOf(header), C.size_t(len(header)), out)
	})
}

// The numbers that GGUF has for types.
const (
	ggufString    = 8
	ggufArray     = 9
	ggufAlignment = 32 // of tensors
)

// ggufHeader writes what the keys were read from: cgo may not be given pointers to Go's pointers.
func ggufHeader(values map[string]any, factors map[string][]float32) ([]byte, error) {
	le := binary.LittleEndian
	text := func(out []byte, words string) []byte {
		return append(le.AppendUint64(out, uint64(len(words))), words...)
	}
	out := le.AppendUint32([]byte("GGUF"), 3)
	out = le.AppendUint64(out, uint64(len(factors)))
	out = le.AppendUint64(out, uint64(len(values)))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value, ok := ggufValue(values[key])
		if !ok {
			return nil, invalid("FromGGUFValues",
				"values[%q] (%T) must be a flag, a number, a text, or a slice of one of them", key, values[key])
		}
		out = append(text(out, key), value...)
	}
	names := slices.Sorted(maps.Keys(factors))
	var data []byte
	for _, name := range names {
		out = le.AppendUint32(text(out, name), 1)
		out = le.AppendUint64(out, uint64(len(factors[name])))
		out = le.AppendUint32(out, 0)
		out = le.AppendUint64(out, uint64(len(data)))
		for _, factor := range factors[name] {
			data = le.AppendUint32(data, math.Float32bits(factor))
		}
		data = append(data, make([]byte, -len(data)&(ggufAlignment-1))...)
	}
	out = append(out, make([]byte, -len(out)&(ggufAlignment-1))...)
	return append(out, data...), nil
}

// ggufValue is a value with its type before it.
func ggufValue(value any) ([]byte, bool) {
	le := binary.LittleEndian
	switch v := value.(type) {
	case string:
		out := le.AppendUint64(le.AppendUint32(nil, ggufString), uint64(len(v)))
		return append(out, v...), true
	case []string: // not looked at
		out := le.AppendUint32(le.AppendUint32(nil, ggufArray), ggufString)
		return le.AppendUint64(out, 0), true
	case int:
		return ggufValue(int64(v))
	case []int:
		wide := make([]int64, len(v))
		for i, number := range v {
			wide[i] = int64(number)
		}
		return ggufValue(wide)
	}
	for _, kind := range []ggufType{
		ggufKind[uint8](0, value), ggufKind[int8](1, value), ggufKind[uint16](2, value), ggufKind[int16](3, value),
		ggufKind[uint32](4, value), ggufKind[int32](5, value), ggufKind[float32](6, value), ggufKind[bool](7, value),
		ggufKind[uint64](10, value), ggufKind[int64](11, value), ggufKind[float64](12, value),
	} {
		if !kind.is {
			continue
		}
		var out []byte
		if kind.list {
			out = le.AppendUint32(le.AppendUint32(nil, ggufArray), uint32(kind.number))
			out = le.AppendUint64(out, uint64(binary.Size(value)/kind.size))
		} else {
			out = le.AppendUint32(nil, uint32(kind.number))
		}
		out, err := binary.Append(out, le, value)
		return out, err == nil
	}
	return nil, false
}

// ggufType is a type of numbers: its own number, the size of one, and whether a value is one or a list of them.
type ggufType struct {
	number, size int
	is, list     bool
}

func ggufKind[T any](number int, value any) ggufType {
	var one T
	_, single := value.(T)
	_, list := value.([]T)
	return ggufType{number, binary.Size(one), single || list, list}
}
