// Package mirrortest starts NATS servers for tests of what mirrors to them and
// reads from them: one server or a cluster, in this process or as processes of
// their own, open or with TLS and every kind of user, and links that are slow
// or cut. Certificates and keys are made on the spot.
//
// A package that wants servers as processes calls Main first in its TestMain.
package mirrortest
