package main

import (
	"os"
	"strings"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/verify"
)

// sourcePath is where a state is read from: a backup, - for standard input, or the target of an archive.
type sourcePath string

// sourceFlags say what of an archive is read.
type sourceFlags struct {
	Ledger  string `help:"Id of the ledger, if an archive has several." env:"-" placeholder:"ID"`
	ToIndex uint64 `help:"Of an archive, everything up to this ledger index, to the last whole log entry; 0 for all that it has." env:"-" placeholder:"INDEX"`
	ToTime  string `help:"Of an archive, everything up to this ledger time." env:"-" placeholder:"RFC3339"`
}

// none returns an error if a flag is given for a source that is no archive.
func (c *sourceFlags) none(source string) error {
	if *c != (sourceFlags{}) {
		return usage("--ledger, --to-index and --to-time choose from an archive, and %s is none", source)
	}
	return nil
}

// until returns up to where an archive is read.
func (c *sourceFlags) until() (u verify.Until, err error) {
	u.Index = c.ToIndex
	if c.ToTime == "" {
		return u, nil
	}
	at, err := operation.ParseTime(c.ToTime)
	if err != nil {
		return u, usage("--to-time: %w", err)
	}
	u.Time = at.AsTime()
	return u, nil
}

// source reads a state, or the first of several that is not damaged.
type source struct {
	from  []verify.Source
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
	if err := c.none(string(from)); err != nil {
		return source{}, err
	}
	backup, done := e.stdin, func() error { return nil }
	if from != "-" {
		f, err := os.Open(string(from))
		if err != nil {
			return source{}, usage("%w", err)
		}
		backup, done = f, f.Close
	}
	return source{[]verify.Source{verify.FromBackup(e.ctx, backup)}, done}, nil
}

// archive opens the states of an archive.
func (c *sourceFlags) archive(e *environment, what string, from sourcePath) (source, error) {
	until, err := c.until()
	if err != nil {
		return source{}, err
	}
	flags := archiveFlags{archivePath(from), c.Ledger}
	target, ledger, err := flags.find(e, what)
	if err != nil {
		return source{}, err
	}
	sources, err := verify.FromArchive(e.ctx, target, ledger, until)
	if err != nil {
		return source{}, fail(exitFailed, "seqledger archive verify lists what there is", "%s: ledger %s: %w", what,
			ledger, err)
	}
	if !e.json {
		e.notice("ledger %s: %s, and the log that follows it", ledger, sources[0].Name)
	}
	return source{sources, func() error { return nil }}, nil
}
