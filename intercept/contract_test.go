package intercept_test

import (
	"example.com/holdfast/intercept"
	"example.com/holdfast/regcache"
)

// The cache takes it as it is.
var _ regcache.Monitor = (*intercept.Monitor)(nil)
