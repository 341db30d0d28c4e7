package relay

import (
	"strconv"

	"github.com/sallyport-ai/sallyport/routing/blockid"
	"github.com/sallyport-ai/sallyport/routing/kvevents"
)

// canonicalExtra is the form in which a block's extra keys enter its id (see
// blockid.Tokens): for each key in the engine's order
//
//	LenPrefix("mm", identifier, decimal offset in the block)
//	LenPrefix("pe", digest of prompt embeddings)
//
// Adapter and salt choose the namespace and are left out. A key that we do not
// understand, or media whose place is not told, makes ok false: such a block is
// not what its tokens say.
func canonicalExtra(keys []kvevents.ExtraKey) (extra []byte, ok bool) {
	for _, k := range keys {
		switch {
		case k.Kind == kvevents.AdapterKey || k.Kind == kvevents.SaltKey:
		case k.Kind == kvevents.MediaKey && k.Offset != kvevents.NoOffset:
			extra = append(extra, blockid.LenPrefix("mm", k.ID, strconv.FormatInt(k.Offset, 10))...)
		case k.Kind == kvevents.EmbedsKey:
			extra = append(extra, blockid.LenPrefix("pe", k.ID)...)
		default:
			return nil, false
		}
	}
	return extra, true
}
