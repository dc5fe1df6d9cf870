package rest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	admissionv1 "github.com/trigate/trigate/proto/gen/go/trigate/admission/v1"
)

// objectName is the message of a Kubernetes object, which may be given as it is.
var objectName = (*admissionv1.Object)(nil).ProtoReflect().Descriptor().FullName()

// fields are the paths of the fields that a body has, in the proto's spelling.
type fields map[string]bool

// reader turns what a person writes into protojson: objects into their messages, JSON
// into the base64 of a field of bytes, short names of enum values into their full ones.
// It refuses what is not in the message, and says where.
type reader struct{ seen fields }

const (
	// maxElements is how many elements of an array are read. No question of a person has
	// as many.
	maxElements = 10_000
	// maxShown is how much of a key an error repeats, in bytes.
	maxShown = 64
)

// shown returns a key as an error has it: not longer than a person reads.
func shown(key string) string {
	if len(key) <= maxShown {
		return key
	}
	return strings.ToValidUTF8(key[:maxShown], "") + "…"
}

// member is one member of a JSON object.
type member struct {
	key   string
	value json.RawMessage
}

// message reads a message at path, which is in the body's spelling for errors; known is
// the same path in the proto's.
func (r *reader) message(md protoreflect.MessageDescriptor, raw json.RawMessage, path, known string) (json.RawMessage, error) {
	members, err := membersOf(raw, path)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteByte('{')
	given := map[protoreflect.Name]bool{}
	for _, m := range members {
		at := join(path, shown(m.key))
		fd := fieldOf(md, m.key)
		switch {
		case fd == nil:
			return nil, unknownField(md, at, m.key)
		case given[fd.Name()]:
			return nil, &fieldError{field: at, reason: "is given more than once", cause: metav1.CauseTypeFieldValueDuplicate}
		case isNull(m.value):
			continue // As if it were not there.
		}
		given[fd.Name()] = true
		field := join(known, string(fd.Name()))
		r.seen[field] = true
		value, err := r.field(fd, m.value, at, field)
		if err != nil {
			return nil, err
		}
		if out.Len() > 1 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, "%q:", fd.JSONName())
		out.Write(value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

func (r *reader) field(fd protoreflect.FieldDescriptor, raw json.RawMessage, path, known string) (json.RawMessage, error) {
	if !fd.IsList() {
		return r.value(fd, raw, path, known)
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return nil, &fieldError{field: path, reason: "has to be an array"}
	}
	if len(elements) > maxElements {
		return nil, &fieldError{field: path, reason: fmt.Sprintf("has %d items, at most %d are accepted", len(elements), maxElements), cause: metav1.CauseTypeTooMany}
	}
	for i, element := range elements {
		var err error
		if elements[i], err = r.value(fd, element, fmt.Sprintf("%s[%d]", path, i), known); err != nil {
			return nil, err
		}
	}
	return json.Marshal(elements)
}

func (r *reader) value(fd protoreflect.FieldDescriptor, raw json.RawMessage, path, known string) (json.RawMessage, error) {
	wrong := func(want string) (json.RawMessage, error) {
		return nil, &fieldError{field: path, reason: "has to be " + want, cause: metav1.CauseTypeFieldValueInvalid}
	}
	quoted := len(raw) > 0 && raw[0] == '"'
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		switch name := fd.Message().FullName(); {
		case name == objectName && isObject(raw):
			return readObject(raw, path)
		case name == "google.protobuf.Timestamp", name == "google.protobuf.Duration":
			if !quoted {
				return wrong("a string")
			}
			return raw, nil
		}
		return r.message(fd.Message(), raw, path, known)
	case protoreflect.StringKind:
		if !quoted {
			return wrong("a string")
		}
	case protoreflect.BoolKind:
		if text := string(raw); text != "true" && text != "false" {
			return wrong("true or false")
		}
	case protoreflect.BytesKind:
		return readBytes(raw, quoted, wrong)
	case protoreflect.EnumKind:
		return readEnum(fd.Enum(), raw, quoted, wrong)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		if _, err := strconv.ParseInt(strings.Trim(string(raw), `"`), 10, 32); err != nil {
			return wrong("an integer of 32 bits")
		}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		if _, err := strconv.ParseInt(strings.Trim(string(raw), `"`), 10, 64); err != nil {
			return wrong("an integer of 64 bits")
		}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind, protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		if _, err := strconv.ParseUint(strings.Trim(string(raw), `"`), 10, 64); err != nil {
			return wrong("an integer from 0 on")
		}
	}
	return raw, nil
}

// readBytes takes base64, or JSON that stands for its own text.
func readBytes(raw json.RawMessage, quoted bool, wrong func(string) (json.RawMessage, error)) (json.RawMessage, error) {
	if len(raw) > 0 && raw[0] == '{' {
		return json.Marshal([]byte(raw))
	}
	var text string
	if !quoted || json.Unmarshal(raw, &text) != nil {
		return wrong("a string in base64, or an object")
	}
	text = strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(text), "=")
	if _, err := base64.RawStdEncoding.DecodeString(text); err != nil {
		return wrong("a string in base64, or an object")
	}
	return raw, nil
}

// readEnum takes the name of a value, with or without what all names of the enum begin
// with (OPERATION_CREATE, CREATE), or its number.
func readEnum(ed protoreflect.EnumDescriptor, raw json.RawMessage, quoted bool, wrong func(string) (json.RawMessage, error)) (json.RawMessage, error) {
	prefix := strings.TrimSuffix(string(ed.Values().Get(0).Name()), "UNSPECIFIED")
	if !quoted {
		if number, err := strconv.ParseInt(string(raw), 10, 32); err == nil && ed.Values().ByNumber(protoreflect.EnumNumber(number)) != nil {
			return raw, nil
		}
	}
	var name string
	if quoted && json.Unmarshal(raw, &name) == nil {
		for _, full := range []string{name, prefix + name} {
			if ed.Values().ByName(protoreflect.Name(full)) != nil {
				return json.Marshal(full)
			}
		}
	}
	var names []string
	for i := 1; i < ed.Values().Len(); i++ { // The first is no value.
		names = append(names, strings.TrimPrefix(string(ed.Values().Get(i).Name()), prefix))
	}
	return wrong("one of " + strings.Join(names, ", "))
}

// isObject tells a Kubernetes object from the message that carries one, whose kind is
// an object and which has no apiVersion.
func isObject(raw json.RawMessage) bool {
	var head struct {
		APIVersion json.RawMessage `json:"apiVersion"`
		Kind       json.RawMessage `json:"kind"`
		Metadata   json.RawMessage `json:"metadata"`
	}
	if json.Unmarshal(raw, &head) != nil {
		return false
	}
	return head.APIVersion != nil || head.Metadata != nil || len(head.Kind) > 0 && head.Kind[0] == '"'
}

// readObject makes the message of an object.
func readObject(raw json.RawMessage, path string) (json.RawMessage, error) {
	if _, err := membersOf(raw, path); err != nil {
		return nil, err
	}
	var head struct {
		APIVersion any `json:"apiVersion"`
		Kind       any `json:"kind"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, &fieldError{field: path, reason: "has to be an object"}
	}
	version, _ := head.APIVersion.(string)
	kind, _ := head.Kind.(string)
	for _, required := range []struct{ name, value string }{{"apiVersion", version}, {"kind", kind}} {
		if required.value == "" {
			return nil, &fieldError{
				field: join(path, required.name), reason: "has to be there, and a string",
				cause: metav1.CauseTypeFieldValueRequired,
			}
		}
	}
	message := map[string]any{"encoding": "ENCODING_JSON", "data": []byte(raw)}
	group := ""
	if before, after, ok := strings.Cut(version, "/"); ok {
		group, version = before, after
	}
	message["kind"] = map[string]string{"group": group, "version": version, "kind": kind}
	return json.Marshal(message)
}

func membersOf(raw json.RawMessage, path string) ([]member, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		what := "has to be an object"
		if path == "" {
			what = "the body " + what
		}
		return nil, &fieldError{field: path, reason: what}
	}
	var members []member
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, &fieldError{field: path, reason: oneLine(err)}
		}
		key, _ := token.(string)
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, &fieldError{field: join(path, shown(key)), reason: oneLine(err)}
		}
		members = append(members, member{key, value})
	}
	return members, nil
}

func fieldOf(md protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if fd := md.Fields().ByJSONName(key); fd != nil {
		return fd
	}
	return md.Fields().ByTextName(key)
}

func isNull(raw json.RawMessage) bool { return string(raw) == "null" }

// unknownField says that a message has no such field, and which one may be meant.
func unknownField(md protoreflect.MessageDescriptor, path, key string) error {
	reason := "unknown field"
	best := len(key)/3 + 1
	for i := range md.Fields().Len() {
		if len(key) > maxShown {
			break // It looks like none.
		}
		name := md.Fields().Get(i).JSONName()
		if d := distance(strings.ToLower(key), strings.ToLower(name)); d < best || d == 1 {
			best, reason = d, fmt.Sprintf("unknown field, did you mean %q?", name)
		}
	}
	return &fieldError{field: path, reason: reason, cause: "FieldUnknown"}
}

// distance is how many letters have to be put in, left out or changed to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := before
			if a[i-1] != b[j-1] {
				cost++
			}
			before = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

// holdsObjects tells whether a message has a Kubernetes object in it. Messages are not
// recursive.
func holdsObjects(md protoreflect.MessageDescriptor) bool {
	for i := range md.Fields().Len() {
		if m := md.Fields().Get(i).Message(); m != nil && (m.FullName() == objectName || holdsObjects(m)) {
			return true
		}
	}
	return false
}

// showObjects puts objects in the place of their messages, where they are JSON. The
// fractions of their times are left out: no encoding of an object carries them.
func showObjects(md protoreflect.MessageDescriptor, data []byte) ([]byte, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return nil, err
	}
	for key, value := range members {
		fd := fieldOf(md, key)
		if fd == nil || fd.Message() == nil || isNull(value) {
			continue
		}
		var err error
		if members[key], err = showField(fd, value); err != nil {
			return nil, err
		}
	}
	return json.Marshal(members)
}

func showField(fd protoreflect.FieldDescriptor, value json.RawMessage) (json.RawMessage, error) {
	show := func(value json.RawMessage) (json.RawMessage, error) {
		switch {
		case fd.Message().FullName() == objectName:
			return showObject(value), nil
		case holdsObjects(fd.Message()):
			return showObjects(fd.Message(), value)
		}
		return value, nil
	}
	if !fd.IsList() {
		return show(value)
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(value, &elements); err != nil {
		return nil, err
	}
	for i := range elements {
		var err error
		if elements[i], err = show(elements[i]); err != nil {
			return nil, err
		}
	}
	return json.Marshal(elements)
}

func showObject(message json.RawMessage) json.RawMessage {
	var object struct {
		Encoding string `json:"encoding"`
		Data     []byte `json:"data"`
	}
	if json.Unmarshal(message, &object) != nil || object.Encoding != admissionv1.Encoding_ENCODING_JSON.String() || !json.Valid(object.Data) {
		return message
	}
	return object.Data
}
