// Weights into and out of the packed layout of layout.h.
#pragma once
#include "layout.h"

namespace ramet {

// fp32 values of one row; out [num_inputs].
void unpack_row(const PackedMatrix& matrix, int row, float* out);

}  // namespace ramet
