package journal

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	defaultRememberTags = 24 * time.Hour
	// tagOverhead bounds the bytes that a remembered tag adds to its name in the file.
	tagOverhead = 32
)

// Tag is the tag of a write that was acknowledged. The write is gone from the journal; its tag is still in use.
type Tag struct {
	Name         string
	Acknowledged time.Time // in whole seconds
}

// rememberedTag is one of a File's remembered tags.
type rememberedTag struct {
	stream *stream
	Tag
}

// remember removes a settled write with a tag from a stream and queues the record of that,
// which keeps the tag in use. The record needs no reserved room, because it is smaller than the write,
// and remembered tags have their own bound. mu is held.
func (f *File) remember(s *stream, r *Record) error {
	e := s.settled[r.ID]
	if e == nil || f.options.RememberTags < 0 {
		return f.append(s, r) // which returns the error
	}
	tag := Tag{e.Tag, time.Unix(time.Now().Unix(), 0)}
	if err := f.append(s, &Record{Kind: kindRemembered, tag: tag}); err != nil {
		return err
	}
	f.tags = append(f.tags, rememberedTag{s, tag})
	f.tagBytes += tagOverhead + len(tag.Name)
	f.forgetTags()
	return nil
}

// takeOverTags collects the remembered tags of a journal that was read, the oldest first.
func (f *File) takeOverTags() {
	for _, s := range f.streams {
		for name, at := range s.remembered {
			f.tags = append(f.tags, rememberedTag{s, Tag{name, at}})
			f.tagBytes += tagOverhead + len(name)
		}
	}
	slices.SortFunc(f.tags, func(a, b rememberedTag) int {
		return cmp.Or(a.Acknowledged.Compare(b.Acknowledged),
			a.stream.name.compare(b.stream.name), cmp.Compare(a.Name, b.Name))
	})
	f.forgetTags()
}

// forgetTags drops the oldest tags beyond the bound. It does not drop those whose time has passed, because the clock
// may be ahead: a tag that is gone stays gone when the clock is set right. It writes no record, because reading the
// file does the same, and a rewrite leaves them out. mu is held.
func (f *File) forgetTags() {
	for f.tagBytes > int(f.options.MaxBytes/32) {
		oldest := f.tags[0]
		f.tags[0] = rememberedTag{}
		f.tags = f.tags[1:]
		f.tagBytes -= tagOverhead + len(oldest.Name)
		// A tag that was used and acknowledged again has a later entry.
		if at, there := oldest.stream.remembered[oldest.Name]; there && at.Equal(oldest.Acknowledged) {
			delete(oldest.stream.remembered, oldest.Name)
		}
	}
}

// remembers reports whether a tag that was acknowledged at the given time is still in use.
func (f *File) remembers(acknowledged time.Time) bool {
	return f.options.RememberTags > 0 && time.Since(acknowledged) < f.options.RememberTags
}

// checkTag refuses a tag that is in use. The empty tag is always free. mu is held.
func (f *File) checkTag(s *stream, tag string) error {
	if err := s.freeTag(tag); err != nil {
		return err
	}
	if at, there := s.remembered[tag]; there && f.remembers(at) {
		return fmt.Errorf("%w: %q was acknowledged at %s", ErrTagInUse, tag, at.UTC().Format(time.RFC3339))
	}
	return nil
}

// tagList returns a stream's remembered tags, the oldest first.
func (s *stream) tagList() []Tag {
	var all []Tag
	for name, at := range s.remembered {
		all = append(all, Tag{name, at})
	}
	slices.SortFunc(all, func(a, b Tag) int {
		return cmp.Or(a.Acknowledged.Compare(b.Acknowledged), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// applyRemembered removes the settled write with a tag, if there is one, and keeps the tag.
func (s *stream) applyRemembered(tag Tag) error {
	if id, used := s.tags[tag.Name]; used {
		e := s.settled[id]
		if e == nil {
			return fmt.Errorf("acknowledges write %d, which is not settled and waiting", id)
		}
		s.remove(e)
	}
	s.remembered[tag.Name] = tag.Acknowledged
	return nil
}
