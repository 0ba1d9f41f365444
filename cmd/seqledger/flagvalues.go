package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/archive/s3"
	"github.com/seqledger/seqledger/ledger/machine"
)

// flagValues replace kong's own parsers of numbers, durations and levels, whose messages quote
// Go's, and which read 010 as eight.
func flagValues() []kong.Option {
	return []kong.Option{
		kong.NamedMapper("clientid", valueReader(func(text string, target reflect.Value) error {
			if invalid, is := errors.AsType[*machine.FieldError](machine.ValidateClientID(text)); is {
				return errors.New(invalid.Problem)
			}
			target.SetString(text)
			return nil
		})),
		kong.KindMapper(reflect.Uint64, valueReader(func(text string, target reflect.Value) error {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return fmt.Errorf("%q must be a number from 0 to %d", text, uint64(math.MaxUint64))
			}
			target.SetUint(n)
			return nil
		})),
		kong.KindMapper(reflect.Int64, valueReader(readInt)),
		kong.KindMapper(reflect.Int, valueReader(readInt)),
		kong.KindMapper(reflect.Float64, valueReader(func(text string, target reflect.Value) error {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return fmt.Errorf("%q must be a number, such as 100 or 0.5", text)
			}
			target.SetFloat(n)
			return nil
		})),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), valueReader(func(text string, target reflect.Value) error {
			d, err := time.ParseDuration(text)
			if err != nil {
				return fmt.Errorf("%q must be a duration with its unit, such as 500ms or 24h, up to 2562047h", text)
			}
			target.SetInt(int64(d))
			return nil
		})),
		kong.TypeMapper(reflect.TypeFor[byteCount](), valueReader(func(text string, target reflect.Value) error {
			n, err := parseByteCount(text)
			if err != nil {
				return err
			}
			target.SetUint(uint64(n))
			return nil
		})),
		kong.TypeMapper(reflect.TypeFor[archivePath](), valueReader(func(text string, target reflect.Value) error {
			if text != noArchive && !strings.HasPrefix(text, "s3://") {
				text = kong.ExpandPath(text)
			}
			target.SetString(text)
			return nil
		})),
		kong.TypeMapper(reflect.TypeFor[sourcePath](), valueReader(func(text string, target reflect.Value) error {
			if text != "-" && !strings.HasPrefix(text, "s3://") {
				text = kong.ExpandPath(text)
			}
			target.SetString(text)
			return nil
		})),
		kong.TypeMapper(reflect.TypeFor[slog.Level](), valueReader(func(text string, target reflect.Value) error {
			var level slog.Level
			if err := level.UnmarshalText([]byte(text)); err != nil {
				return fmt.Errorf("%q must be debug, info, warn or error", text)
			}
			target.SetInt(int64(level))
			return nil
		})),
	}
}

// refuseEmpty makes paths, and values with the tag nonempty, refuse the empty text, which kong takes for the working
// directory.
func refuseEmpty(k *kong.Kong) error {
	return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
		value, is := node.(*kong.Value)
		if flag, isFlag := node.(*kong.Flag); isFlag {
			value, is = flag.Value, true
		}
		if is && (value.Tag.Type == "path" || value.Tag.Has("nonempty")) {
			inner := value.Mapper
			value.Mapper = kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
				if text, is := ctx.Scan.Peek().Value.(string); is && text == "" {
					return errors.New("must not be empty")
				}
				return inner.Decode(ctx, target)
			})
		}
		return next(nil)
	})
}

// archivePath is the target of an archive, a directory or s3://BUCKET/PREFIX, empty for what the ledger had before, or
// noArchive.
type archivePath string

// noArchive gives the archive up. A directory of this name is ./none.
const noArchive = "none"

// directory returns the path of the directory, or nothing.
func (d archivePath) directory() string {
	if d == noArchive || strings.HasPrefix(string(d), "s3://") {
		return ""
	}
	return string(d)
}

// open returns the target; nil for none.
func (d archivePath) open(ctx context.Context) (archive.Target, error) {
	switch {
	case strings.HasPrefix(string(d), "s3://"):
		return s3.Open(ctx, string(d))
	case d.directory() != "":
		return archive.Directory(d.directory()), nil
	}
	return nil, nil
}

// byteCount is a number of bytes.
type byteCount uint64

// parseByteCount reads a number of bytes: 1048576, 1MiB, 500GiB.
func parseByteCount(text string) (byteCount, error) {
	digits, shift := text, 0
	for unit, bits := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40} {
		if number, has := strings.CutSuffix(text, unit); has {
			digits, shift = number, bits
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > math.MaxUint64>>shift {
		return 0, fmt.Errorf("%q must be a number of bytes, such as 1048576, 64MiB or 500GiB", text)
	}
	return byteCount(n << shift), nil
}

// valueReader turns a function that parses one value into a mapper.
func valueReader(read func(text string, target reflect.Value) error) kong.Mapper {
	return kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
		var text string
		if err := ctx.Scan.PopValueInto("a", &text); err != nil {
			return err
		}
		return read(text, target)
	})
}

func readInt(text string, target reflect.Value) error {
	n, err := strconv.ParseInt(text, 10, target.Type().Bits())
	if err != nil {
		return fmt.Errorf("%q must be a whole number", text)
	}
	target.SetInt(n)
	return nil
}
