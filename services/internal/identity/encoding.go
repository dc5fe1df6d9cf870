package identity

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/trigate/trigate/services/internal/rpcerr"
)

const upperHex = "0123456789ABCDEF"

// NeedsEncoding reports whether a message with these strings has to have them
// percent-encoded: one of them is not valid UTF-8.
func NeedsEncoding(strs ...string) bool {
	for _, s := range strs {
		if !utf8.ValidString(s) {
			return true
		}
	}
	return false
}

// Encode percent-encodes a string (RFC 3986, section 2.1): every octet that is
// not printable ASCII, the space, and the percent sign. The rest stays as it
// is, so that names remain readable.
func Encode(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i := range len(s) {
		c := s[i]
		if c > 0x20 && c < 0x7f && c != '%' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(upperHex[c>>4])
		b.WriteByte(upperHex[c&0xf])
	}
	return b.String()
}

// Decode undoes Encode, and any other percent-encoding. The error says where
// an escape is malformed.
func Decode(s string) (string, error) {
	if !strings.Contains(s, "%") {
		return s, nil
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("incomplete escape at octet %d", i)
		}
		high, low := fromHex(s[i+1]), fromHex(s[i+2])
		if high < 0 || low < 0 {
			return "", fmt.Errorf("malformed escape at octet %d", i)
		}
		b.WriteByte(byte(high<<4 | low))
		i += 2
	}
	return b.String(), nil
}

func fromHex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// Encoder writes the strings of one message: all of them percent-encoded, or
// none.
type Encoder struct{ encoded bool }

// NewEncoder returns the encoder for a message that has these strings, which
// must be all of them.
func NewEncoder(strs ...string) Encoder { return Encoder{encoded: NeedsEncoding(strs...)} }

// Encoded is the value of the message's percent_encoded field.
func (e Encoder) Encoded() bool { return e.encoded }

// String returns the string as the message has it.
func (e Encoder) String(s string) string {
	if e.encoded {
		return Encode(s)
	}
	return s
}

// Strings returns the strings as the message has them, and nil for none.
func (e Encoder) Strings(strs []string) []string {
	if len(strs) == 0 {
		return nil
	}
	out := slices.Clone(strs)
	if !e.encoded {
		return out
	}
	for i, s := range strs {
		out[i] = Encode(s)
	}
	return out
}

// Decoder reads the strings of one message, percent-encoded or not, and
// remembers the first that cannot be read. A field's name may be given in two parts,
// which cost nothing while all is well.
type Decoder struct {
	encoded bool
	err     *rpcerr.Error
}

// NewDecoder returns the decoder of a message with this percent_encoded field.
func NewDecoder(encoded bool) Decoder { return Decoder{encoded: encoded} }

// String returns what the message's string stands for. The field is its name
// in the proto's spelling, for the error.
func (d *Decoder) String(field, s string) string { return d.StringOf("", field, s) }

// StringOf is String for a field of a part of the message.
func (d *Decoder) StringOf(parent, field, s string) string {
	if !d.encoded {
		return s
	}
	decoded, err := Decode(s)
	if err != nil && d.err == nil {
		d.err = rpcerr.InvalidArgument(parent+field, "%v", err)
	}
	return decoded
}

// Strings returns what the message's strings stand for, and nil for none. The
// slice is a new one.
func (d *Decoder) Strings(field string, strs []string) []string { return d.StringsOf("", field, strs) }

// StringsOf is Strings for a field of a part of the message.
func (d *Decoder) StringsOf(parent, field string, strs []string) []string {
	if len(strs) == 0 {
		return nil
	}
	out := slices.Clone(strs)
	if !d.encoded {
		return out
	}
	for i, s := range strs {
		out[i] = d.StringOf(parent, fmt.Sprintf("%s[%d]", field, i), s)
	}
	return out
}

// Err returns an InvalidArgument that names the first field that could not be
// read, or nil.
func (d *Decoder) Err() error {
	if d.err == nil {
		return nil
	}
	return d.err
}
