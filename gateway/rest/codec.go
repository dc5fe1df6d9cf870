package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	yamlv3 "go.yaml.in/yaml/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// The formats of bodies. Streams are one JSON text a line.
const (
	mediaJSON   = "application/json"
	mediaYAML   = "application/yaml"
	mediaStream = "application/x-ndjson"
)

var (
	jsonCodec = &codec{media: mediaJSON}
	yamlCodec = &codec{media: mediaYAML}
)

// codec makes messages of bodies and bodies of messages, in JSON or YAML. Names of
// fields are read in either of protojson's spellings, and written in camelCase, as in
// the Kubernetes API.
type codec struct{ media string }

var (
	_ runtime.Marshaler         = (*codec)(nil)
	_ runtime.StreamContentType = (*codec)(nil)
	_ runtime.Delimited         = (*codec)(nil)
)

// ContentType implements runtime.Marshaler.
func (c *codec) ContentType(any) string { return c.media }

// StreamContentType implements runtime.StreamContentType.
func (c *codec) StreamContentType(any) string { return mediaStream }

// Delimiter implements runtime.Delimited.
func (c *codec) Delimiter() []byte { return []byte("\n") }

// Marshal implements runtime.Marshaler.
func (c *codec) Marshal(v any) ([]byte, error) {
	data, err := marshalJSON(v)
	if err != nil || c.media != mediaYAML {
		return data, err
	}
	return yaml.JSONToYAML(data)
}

// marshalJSON knows what grpc-gateway hands over: a message, its members (withDefaulted),
// or one of a stream's results or its error in a map.
func marshalJSON(v any) ([]byte, error) {
	switch v := v.(type) {
	case *spb.Status:
		return json.Marshal(statusOfGate(status.FromProto(v)))
	case proto.Message:
		return marshalMessage(v)
	case map[string]proto.Message:
		return marshalMembers(v)
	case map[string]any:
		return marshalMembers(v)
	}
	return json.Marshal(v)
}

func marshalMembers[V any](members map[string]V) ([]byte, error) {
	out := make(map[string]json.RawMessage, len(members))
	for key, value := range members {
		data, err := marshalJSON(value)
		if err != nil {
			return nil, err
		}
		out[key] = data
	}
	return json.Marshal(out)
}

func marshalMessage(m proto.Message) ([]byte, error) {
	data, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	if holdsObjects(m.ProtoReflect().Descriptor()) {
		if data, err = showObjects(m.ProtoReflect().Descriptor(), data); err != nil {
			return nil, err
		}
	}
	// protojson has blanks at random places.
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return nil, err
	}
	return compact.Bytes(), nil
}

// Unmarshal implements runtime.Marshaler. Bodies come by NewDecoder.
func (c *codec) Unmarshal([]byte, any) error { return errors.ErrUnsupported }

// NewDecoder implements runtime.Marshaler.
func (c *codec) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		body, ok := r.(*requestBody)
		if !ok {
			return fmt.Errorf("reading a %T: %w", r, errors.ErrUnsupported)
		}
		return body.decode(v, c.unmarshal)
	})
}

// NewEncoder implements runtime.Marshaler.
func (c *codec) NewEncoder(w io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(v any) error {
		data, err := c.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
}

// unmarshal makes a message of a body. It returns which fields the body has, by their
// paths in the proto's spelling. An error is a *fieldError.
func (c *codec) unmarshal(data []byte, m proto.Message) (fields, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return fields{}, nil
	}
	if c.media == mediaYAML {
		err := checkYAML(data)
		if err != nil {
			return nil, err
		}
		if data, err = yaml.YAMLToJSONStrict(data); err != nil {
			return nil, &fieldError{reason: "the body is not YAML: " + oneLine(err)}
		}
	}
	if err := checkSyntax(data); err != nil {
		return nil, err
	}
	r := &reader{seen: fields{}}
	data, err := r.message(m.ProtoReflect().Descriptor(), data, "", "")
	if err != nil {
		return nil, err
	}
	if err := protojson.Unmarshal(data, m); err != nil {
		return nil, &fieldError{reason: "the body is not a " + string(m.ProtoReflect().Descriptor().Name()) + ": " + withoutPlace(err)}
	}
	return r.seen, nil
}

// checkYAML refuses what is not one YAML document, and aliases: no question needs them,
// and what they stand for may be many times as large as they are.
func checkYAML(data []byte) error {
	decoder := yamlv3.NewDecoder(bytes.NewReader(data))
	var document, next yamlv3.Node
	if err := decoder.Decode(&document); err != nil {
		return &fieldError{reason: "the body is not YAML: " + oneLine(err)}
	}
	if hasAlias(&document) {
		return &fieldError{reason: "the body has aliases, which are not accepted"}
	}
	if err := decoder.Decode(&next); !errors.Is(err, io.EOF) {
		return &fieldError{reason: "the body is more than one YAML document"}
	}
	return nil
}

func hasAlias(node *yamlv3.Node) bool {
	return node.Kind == yamlv3.AliasNode || slices.ContainsFunc(node.Content, hasAlias)
}

// checkSyntax refuses what is not one JSON text. It says where, by field if there is
// one.
func checkSyntax(data []byte) error {
	if json.Valid(data) {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	var path place
	for {
		token, err := decoder.Token()
		if err == nil {
			path.step(token)
			continue
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			if path.done {
				break // What follows the text is at fault.
			}
			return &fieldError{field: path.String(), reason: "the body is not JSON: it ends too early"}
		}
		offset := decoder.InputOffset()
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) && syntax.Offset > offset {
			offset = syntax.Offset
		}
		return &fieldError{field: path.String(), reason: fmt.Sprintf("the body is not JSON: %s, near byte %d", oneLine(err), offset)}
	}
	return &fieldError{reason: "the body is more than one JSON text"}
}

// maxLevels is how deep a place is known. No message is as deep.
const maxLevels = 32

// place is where in a JSON text a decoder is.
type place struct {
	levels []level
	// deeper is how many levels there are below these.
	deeper int
	done   bool
}

type level struct {
	array bool
	index int
	key   string
	// keyed is true between a key and its value.
	keyed bool
}

func (p *place) step(token json.Token) {
	switch opens := token == json.Delim('{') || token == json.Delim('['); {
	case opens && len(p.levels) == maxLevels:
		p.deeper++
		return
	case opens:
		p.levels = append(p.levels, level{array: token == json.Delim('[')})
		return
	case token == json.Delim('}') || token == json.Delim(']'):
		if p.deeper > 0 {
			p.deeper--
			return
		}
		p.levels = p.levels[:len(p.levels)-1]
	case p.deeper > 0:
		return
	}
	if len(p.levels) == 0 {
		p.done = true
		return
	}
	switch top := &p.levels[len(p.levels)-1]; {
	case top.array:
		top.index++
	case top.keyed:
		top.keyed = false
	default:
		key, _ := token.(string)
		top.key, top.keyed = key, true
	}
}

// String returns the path of the value that the decoder is at, or has just read.
func (p *place) String() string {
	var path string
	for _, l := range p.levels {
		switch {
		case l.array:
			path += fmt.Sprintf("[%d]", l.index)
		case l.key != "":
			path = join(path, shown(l.key))
		}
	}
	return path
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// oneLine returns an error of a parser without its lines and its package's name.
func oneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "json: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return text
}

// withoutPlace returns protojson's error without the place, which is one in a text
// that the client has not sent.
func withoutPlace(err error) string {
	text := strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:"))
	if strings.HasPrefix(text, "(line ") {
		if _, rest, ok := strings.Cut(text, "): "); ok {
			return rest
		}
	}
	return text
}
