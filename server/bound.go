package server

import (
	"fmt"
	"strings"

	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	// maxElements of any list or object in a request in JSON: no message has
	// more fields, and no list of a request a higher limit.
	maxElements = max(maxFrameWrites, machine.MaxOperations)
	// maxObjects of a request in JSON: an operation has three, a write two beside,
	// the frame is one.
	maxObjects = 3*maxFrameOperations + 2*maxFrameWrites + 1
	// maxDepth of lists and objects in one another; a frame has seven.
	maxDepth = 16
)

// jsonLevel is a list or an object around the current position of a scan.
type jsonLevel struct {
	list   bool
	commas int
	key    []byte // of the current member
}

// boundJSON returns an error for the first list or object that is too long or too deep, with
// its depth from 1, or nil. It runs before decoding, because `{}` takes two bytes in the text
// and hundreds in memory. It does not validate the JSON: a syntax error that misleads it also
// stops the decoder at the same place.
func boundJSON(data []byte) (problem *machine.FieldError, depth int) {
	var levels [maxDepth]jsonLevel
	var text []byte // the last string, as it is written
	objects := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			first := i + 1
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
			text = data[first:min(i, len(data))]
		case ':':
			if depth > 0 {
				levels[depth-1].key = text
			}
		case '{', '[':
			if data[i] == '{' {
				objects++
			}
			if objects > maxObjects { // all together are too many
				return &machine.FieldError{Problem: fmt.Sprintf("has more than %d objects: send several messages", maxObjects)}, 1
			}
			if depth == maxDepth {
				return &machine.FieldError{Field: jsonPath(levels[:]), Problem: "is nested too deeply"}, depth
			}
			levels[depth] = jsonLevel{list: data[i] == '['}
			depth++
		case '}', ']':
			depth = max(0, depth-1)
		case ',':
			if depth == 0 {
				continue
			}
			if levels[depth-1].commas++; levels[depth-1].commas >= maxElements {
				return &machine.FieldError{
					Field: jsonPath(levels[:depth]), Problem: fmt.Sprintf("has more than %d elements", maxElements),
				}, depth
			}
		}
	}
	return nil, 0
}

// jsonPath names the last level.
func jsonPath(levels []jsonLevel) string {
	path := ""
	for _, l := range levels[:len(levels)-1] {
		if l.list {
			path += fmt.Sprintf("[%d]", l.commas)
			continue
		}
		// An answer must be UTF-8, whatever the request was.
		path = join(path, clip(strings.ToValidUTF8(string(l.key), "?")))
	}
	return path
}
