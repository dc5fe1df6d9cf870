package decisions

import (
	"encoding/binary"
	"maps"
	"slices"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func appendExtra(b []byte, extra map[string][]string) []byte {
	b = binary.AppendUvarint(b, uint64(len(extra)))
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		b = appendString(b, key)
		b = appendStrings(b, extra[key])
	}
	return b
}

func appendStrings(b []byte, values []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(values)))
	for _, value := range values {
		b = appendString(b, value)
	}
	return b
}

func appendSelectors(b []byte, a authorizer.Attributes) []byte {
	fields, err := a.GetFieldSelector()
	b = appendError(b, err)
	b = binary.AppendUvarint(b, uint64(len(fields)))
	for _, term := range fields {
		b = appendString(b, term.Field)
		b = appendString(b, string(term.Operator))
		b = appendString(b, term.Value)
	}
	terms, err := a.GetLabelSelector()
	b = appendError(b, err)
	b = binary.AppendUvarint(b, uint64(len(terms)))
	for _, term := range terms {
		b = appendString(b, term.Key())
		b = appendString(b, string(term.Operator()))
		b = appendStrings(b, slices.Sorted(maps.Keys(term.Values())))
	}
	return b
}

func appendError(b []byte, err error) []byte {
	if err == nil {
		return append(b, 0)
	}
	return appendString(append(b, 1), err.Error())
}
