package datadir

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

const (
	incomingName = "incoming"
	wholeName    = "WHOLE"
)

// ErrReplacing says that the state of another node is taking the place of the one in the directory,
// which only a start of the node finishes.
var ErrReplacing = errors.New("the state of another node is taking the place of the one in the data directory: " +
	"start the node, which finishes that")

// replacedParts is what a replacement moves.
func replacedParts() []string { return []string{SumsName, StateName, BlocksName, LogName} }

// Incoming begins an empty directory inside of this one, for a state and a log that are to take the
// place of those in use. It bears the same identity. Nothing in it counts before Replace: the next
// Open removes it. It is covered by the lock of this directory and must not be closed.
func (d *Directory) Incoming() (*Directory, error) {
	if d.fresh {
		return nil, fmt.Errorf("%s has no state and log that could be replaced", d.path)
	}
	if err := d.RemoveIncoming(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(d.file(incomingName), 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return d.incoming(), d.sync()
}

func (d *Directory) incoming() *Directory {
	return &Directory{
		path: d.file(incomingName), identity: d.identity, node: d.node, fresh: true,
	}
}

// RemoveIncoming removes what Incoming began. It must not be called after Replace.
func (d *Directory) RemoveIncoming() error { return d.remove(incomingName) }

// Replace puts the state and the log of Incoming in the place of those in use. All of it must be
// durable. Once Replace has marked it as whole, it is the state of the node: if the process dies or
// Replace fails afterwards, the next Open continues, and OpenLedger refuses the directory before that.
func (d *Directory) Replace() error { return d.replace(func(string) error { return nil }) }

// replace calls step before each change of the disk; an error of it ends the replacement there.
func (d *Directory) replace(step func(what string) error) error {
	in := d.incoming()
	switch moved, err := d.movedParts(); {
	case err != nil:
		return err
	case moved > 0: // what is in use would be taken for parts that were moved
		return fmt.Errorf("%s is not whole: %d parts are missing", in.path, moved)
	}
	whole, err := d.marker()
	if err != nil {
		return err
	}
	if err := step("mark"); err != nil {
		return err
	}
	if err := in.writeFile(wholeName, whole); err != nil {
		return err
	}
	return d.finishReplace(step)
}

// incomingIsWhole reports whether a replacement was begun that must be finished.
func (d *Directory) incomingIsWhole() (bool, error) {
	b, err := os.ReadFile(d.incoming().file(wholeName))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("data directory: %w", err)
	}
	// It appeared whole, so that whatever else it says can only be damage.
	if want, err := d.marker(); err != nil || !bytes.Equal(b, want) {
		return false, errors.Join(fmt.Errorf("%s is damaged: it is %q and should be %q; let the node join again "+
			"with an empty directory", d.incoming().file(wholeName), b, want), err)
	}
	return true, nil
}

// recoverIncoming finishes a replacement, or removes what was to become one.
func (d *Directory) recoverIncoming() error {
	whole, err := d.incomingIsWhole()
	switch {
	case err != nil:
		return err
	case whole:
		return d.finishReplace(func(string) error { return nil })
	}
	if _, err := os.Lstat(d.file(incomingName)); errors.Is(err, os.ErrNotExist) {
		return nil // the usual case, in which nothing needs a sync
	}
	return d.RemoveIncoming()
}

// movedParts counts the parts that a replacement has moved into their place.
//
// The first part is moved once all old parts are gone. So while all new parts are in incoming, the
// others are the old ones; afterwards each part is in one of the two places.
func (d *Directory) movedParts() (moved int, err error) {
	in := d.incoming()
	var waiting, both, neither []string
	for _, name := range replacedParts() {
		here, err := exists(d.file(name))
		if err != nil {
			return 0, err
		}
		there, err := exists(in.file(name))
		switch {
		case err != nil:
			return 0, err
		case !here && !there:
			neither = append(neither, name)
		case here && there:
			both = append(both, name)
		}
		if there {
			waiting = append(waiting, name)
		}
	}
	moved = len(replacedParts()) - len(waiting)
	if moved > 0 && len(both)+len(neither) > 0 {
		return 0, fmt.Errorf("%s is damaged: of the parts that take the place of others %q are missing and %q are "+
			"there twice; let the node join again with an empty directory", in.path, neither, both)
	}
	return moved, nil
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("data directory: %w", err)
	}
	return true, nil
}

// finishReplace moves the parts that were not moved yet, and can be repeated from any point.
func (d *Directory) finishReplace(step func(what string) error) error {
	in := d.incoming()
	moved, err := d.movedParts()
	if err != nil {
		return err
	}
	// A start may have found the marker in the system's cache alone.
	steps := []changeStep{{"sync the marker", in.sync}}
	if moved == 0 {
		for _, name := range replacedParts() {
			steps = append(steps, changeStep{"remove " + name, func() error { return os.RemoveAll(d.file(name)) }})
		}
		steps = append(steps, changeStep{"sync", d.sync}) // see movedParts
	}
	for _, name := range replacedParts() {
		there, err := exists(in.file(name))
		if err != nil {
			return err
		}
		if there {
			steps = append(steps, changeStep{"move " + name, func() error {
				return os.Rename(in.file(name), d.file(name))
			}})
		}
	}
	steps = append(steps,
		// The marker must not be gone before the new names are durable.
		changeStep{"sync the names", func() error { return errors.Join(d.sync(), in.sync()) }},
		changeStep{"remove the marker", func() error { return in.remove(wholeName) }},
		changeStep{"remove the directory", d.RemoveIncoming},
	)
	for _, s := range steps {
		err := step(s.what)
		if err == nil {
			err = s.do()
		}
		if err != nil {
			return fmt.Errorf("replacement of the state by that of another node: %s: %w", s.what, err)
		}
	}
	return nil
}

// changeStep is a change of the disk.
type changeStep struct {
	what string
	do   func() error
}
