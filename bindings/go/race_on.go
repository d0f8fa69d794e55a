//go:build cgo && race

package rope

import (
	"runtime"
	"unsafe"
)

// The race detector sees Go's memory accesses only. In its builds, calls tell it what C has read and
// written.
const raceEnabled = true

func raceRead(data unsafe.Pointer, bytes uint64) {
	if bytes != 0 {
		runtime.RaceReadRange(data, int(bytes))
	}
}

func raceWrite(data unsafe.Pointer, bytes uint64) {
	if bytes != 0 {
		runtime.RaceWriteRange(data, int(bytes))
	}
}
