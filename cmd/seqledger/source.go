package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/backupfile"
)

// sourcePath is where a state is read from: a backup, - for standard input, or the target of an archive.
type sourcePath string

// sourceFlags say which state of an archive is read.
type sourceFlags struct {
	Ledger string `help:"Id of the ledger, if an archive has several." env:"-" placeholder:"ID"`
	State  uint64 `help:"Of an archive, the newest state up to this ledger index; 0 for the newest of all." env:"-" placeholder:"INDEX"`
}

// source reads a state.
type source struct {
	read  func(open func(file uint64) (io.Writer, error), progress func(done, total int64)) (backupfile.Info, error)
	close func() error
}

// open opens a source. what names the command in messages.
func (c *sourceFlags) open(e *environment, what string, from sourcePath) (source, error) {
	isArchive := strings.HasPrefix(string(from), "s3://")
	if info, err := os.Stat(string(from)); err == nil && info.IsDir() {
		isArchive = true
		if ids, err := archive.Ledgers(e.ctx, archive.Directory(string(from))); err == nil && len(ids) == 0 {
			return source{}, fail(exitUsage, "a data directory is restored with restore --from-directory and checked "+
				"with verify --data", "%s is a directory without an archive, and no backup", from)
		}
	}
	if isArchive {
		return c.archive(e, what, from)
	}
	if c.Ledger != "" || c.State != 0 {
		return source{}, usage("--ledger and --state choose from an archive, and %s is none", from)
	}
	s := source{close: func() error { return nil }}
	backup := e.stdin
	if from != "-" {
		f, err := os.Open(string(from))
		if err != nil {
			return source{}, usage("%w", err)
		}
		backup, s.close = f, f.Close
	}
	s.read = func(open func(uint64) (io.Writer, error), progress func(done, total int64)) (backupfile.Info, error) {
		return backupfile.Read(e.ctx, backup, nil, open, progress)
	}
	return s, nil
}

// archive opens a state of an archive.
func (c *sourceFlags) archive(e *environment, what string, from sourcePath) (source, error) {
	flags := archiveFlags{archivePath(from), c.Ledger}
	target, ledger, err := flags.find(e, what)
	if err != nil {
		return source{}, err
	}
	states, err := archive.States(e.ctx, target, ledger)
	if err != nil {
		return source{}, fail(exitFailed, "", "%s: %w", what, err)
	}
	for len(states) > 0 && c.State != 0 && states[len(states)-1].Index > c.State {
		states = states[:len(states)-1]
	}
	if len(states) == 0 {
		return source{}, fail(exitFailed, "seqledger archive verify lists what there is",
			"%s: there is no state of %s in %s", what, ledger, target)
	}
	chosen := states[len(states)-1]
	if !e.json {
		e.notice("state of ledger %s up to index %d, of %s", ledger, chosen.Index,
			chosen.Time.UTC().Format(time.RFC3339))
	}
	s := source{close: func() error { return nil }}
	s.read = func(open func(uint64) (io.Writer, error), progress func(done, total int64)) (backupfile.Info, error) {
		info, err := archive.ReadState(e.ctx, target, chosen, open, progress)
		if err != nil && len(states) > 1 {
			err = fmt.Errorf("%w (there is an older state: --state %d)", err, states[len(states)-2].Index)
		}
		return info, err
	}
	return s, nil
}
