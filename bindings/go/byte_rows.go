//go:build cgo

package rope

import "unsafe"

// InBytes are the elements that memory has from byte offset on, as many as it holds: the same memory, in the machine's
// byte order. It is for rows that hold codes, their scales and keys in types of their own, of which each Tensor and
// Scale takes a slice of its type. These slices overlap; calls refuse tensors that do.
//
// The rows of DeepSeek V3.2 have 656 bytes for each token: 512 codes of the latent, a scale in float32 for each 128 of
// them, and the 64 channels that turn:
//
//	memory := make([]float32, pages*pageSize*656/4) // or bytes that another program has aligned
//	codes, err := rope.InBytes[rope.F8E4M3](memory, 0)
//	scales, err := rope.InBytes[float32](memory, 512)
//	keys, err := rope.InBytes[rope.BFloat16](memory, 528)
//
// Memory that is not aligned to the elements there is an error. Bits of half-precision numbers, as []uint16, are memory
// as well.
func InBytes[T, M OutputElement | uint8 | uint16](memory []M, offset int) ([]T, error) {
	var element T
	var unit M
	// What elements are: numbers, without pointers, of which any bytes are one.
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)*int(unsafe.Sizeof(unit)))
	if offset < 0 || offset > len(bytes) {
		return nil, invalid("InBytes", "offset (%d) must be from 0 to the bytes of memory (%d)", offset, len(bytes))
	}
	bytes = bytes[offset:]
	data := unsafe.Pointer(unsafe.SliceData(bytes))
	if uintptr(data)%unsafe.Alignof(element) != 0 {
		return nil, invalid("InBytes", "memory from byte %d on must be aligned to %T, by %d bytes", offset, element,
			unsafe.Alignof(element))
	}
	return unsafe.Slice((*T)(data), len(bytes)/int(unsafe.Sizeof(element))), nil
}
