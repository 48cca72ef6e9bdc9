"""Rights: a pure function of principal, action and object. What no rule allows is denied."""
