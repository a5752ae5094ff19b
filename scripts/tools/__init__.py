"""What tests the package from outside, makes its bundled data, and writes its generated pages and figures."""
