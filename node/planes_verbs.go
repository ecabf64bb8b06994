//go:build verbs

package node

import "github.com/pdlog/pdlog/rdma/verbs"

func init() { providers[verbs.Name] = verbs.Provider{} }
