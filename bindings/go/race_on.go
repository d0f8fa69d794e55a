//go:build cgo && race

package rope

import (
	"runtime"
	"unsafe"
)

// The race detector sees Go's memory accesses only. In its builds, calls tell it what C has read and
// written.
const raceEnabled = true

// raceIgnore begins what the detector must not take for an order of calls: that they count themselves.
// It would miss that two of them write the same elements. raceWatch ends it.
func raceIgnore() { runtime.RaceDisable() }
func raceWatch()  { runtime.RaceEnable() }

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
