// Weights into and out of the packed layout of layout.h.
#pragma once
#include "c_api.h"
#include "layout.h"

namespace ramet {

inline PackedMatrix as_packed(const ramet_matrix& matrix) {
    return {matrix.num_outputs, matrix.num_inputs, matrix.format, matrix.is_planes, matrix.data};
}

// fp32 values of one row; out [num_inputs].
void unpack_row(const PackedMatrix& matrix, int row, float* out);

}  // namespace ramet
