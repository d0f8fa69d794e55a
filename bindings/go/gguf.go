//go:build cgo

package rope

// #include "shim.h"
import "C"

import (
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"unsafe"
)

// FromGGUFValues is FromGGUF for a program that has parsed the file already. values are its keys: bool, string,
// int, int8 to int64, uint, uint8 to uint64, float32, float64, and slices of them; texts of a vocabulary may be among
// them and are not looked at. factors are its tensors of frequency factors by name ("rope_freqs.weight"): one that
// does not count is an ErrUnsupported. A value of another type is an ErrInvalidArgument.
func FromGGUFValues(values map[string]any, factors map[string][]float32) (*Model, error) {
	const function = "FromGGUFValues"
	counts := narrow{function: function}
	valueCount, factorCount := counts.int32("len(values)", len(values)), counts.int32("len(factors)", len(factors))
	if counts.err != nil {
		return nil, counts.err
	}
	var pins runtime.Pinner // C is given lists of pointers to Go's memory
	defer pins.Unpin()
	given := make([]C.rope_gguf_value, 0, len(values)+1) // never nil
	for _, key := range slices.Sorted(maps.Keys(values)) {
		name, ok := pinText(&pins, key)
		if !ok {
			return nil, invalid(function, "the key %q of values must not have a NUL character", key)
		}
		value, ok := ggufValue(&pins, values[key])
		if !ok {
			return nil, invalid(function,
				"values[%q] (%T) must be a bool, a string, an int, uint or float of any size, or a slice of one of them", key,
				values[key])
		}
		value.key = name
		given = append(given, value)
	}
	tensors := make([]C.rope_gguf_factors, 0, len(factors)+1)
	for _, key := range slices.Sorted(maps.Keys(factors)) {
		name, ok := pinText(&pins, key)
		if !ok {
			return nil, invalid(function, "the key %q of factors must not have a NUL character", key)
		}
		first := addressOf(factors[key]) // never nil
		pins.Pin(first)
		tensors = append(tensors, C.rope_gguf_factors{name: name, values: (*C.float)(first),
			count: C.uint64_t(len(factors[key]))})
	}
	return newModel(function, func(out **C.rope_model) *C.ropego_error {
		return C.ropego_model_create_gguf_values(unsafe.SliceData(given), valueCount, unsafe.SliceData(tensors),
			factorCount, out)
	})
}

// pinText is a copy of a text with a final 0; not ok if there is one in it.
func pinText(pins *runtime.Pinner, text string) (*C.char, bool) {
	bytes := append([]byte(text), 0)
	pins.Pin(&bytes[0])
	return (*C.char)(unsafe.Pointer(&bytes[0])), strings.IndexByte(text, 0) < 0
}

// The numbers that GGUF has for types.
const (
	ggufString = 8
	ggufArray  = 9
)

// ggufNumbers are the types of numbers and flags.
var ggufNumbers = map[reflect.Kind]C.uint32_t{reflect.Uint8: 0, reflect.Int8: 1, reflect.Uint16: 2, reflect.Int16: 3,
	reflect.Uint32: 4, reflect.Int32: 5, reflect.Float32: 6, reflect.Bool: 7, reflect.Uint64: 10, reflect.Int64: 11,
	reflect.Float64: 12}

// ggufValue is a value without its key; what it points to is pinned.
func ggufValue(pins *runtime.Pinner, value any) (C.rope_gguf_value, bool) {
	of := reflect.ValueOf(value)
	switch of.Kind() {
	case reflect.String:
		text, _ := pinText(pins, of.String())
		return C.rope_gguf_value{_type: ggufString, count: C.uint64_t(of.Len()), data: unsafe.Pointer(text)}, true
	case reflect.Int:
		return ggufValue(pins, of.Int())
	case reflect.Uint:
		return ggufValue(pins, of.Uint())
	case reflect.Slice:
		return ggufList(pins, of)
	}
	number, ok := ggufNumbers[of.Kind()]
	if !ok {
		return C.rope_gguf_value{}, false
	}
	place := reflect.New(of.Type())
	place.Elem().Set(of)
	pins.Pin(place.UnsafePointer())
	return C.rope_gguf_value{_type: number, data: place.UnsafePointer()}, true
}

func ggufList(pins *runtime.Pinner, list reflect.Value) (C.rope_gguf_value, bool) {
	raw := C.rope_gguf_value{_type: ggufArray, count: C.uint64_t(list.Len())}
	switch of := list.Type().Elem().Kind(); of {
	case reflect.String:
		raw.element = ggufString // texts are not looked at
		return raw, true
	case reflect.Int:
		wide := make([]int64, list.Len())
		for i := range wide {
			wide[i] = list.Index(i).Int()
		}
		return ggufList(pins, reflect.ValueOf(wide))
	case reflect.Uint:
		wide := make([]uint64, list.Len())
		for i := range wide {
			wide[i] = list.Index(i).Uint()
		}
		return ggufList(pins, reflect.ValueOf(wide))
	default:
		number, ok := ggufNumbers[of]
		raw.element = number
		if ok && list.Len() != 0 {
			raw.data = list.UnsafePointer()
			pins.Pin(raw.data)
		}
		return raw, ok
	}
}
